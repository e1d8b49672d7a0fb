package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// prisoner is a child in a stack of its own. It prints what it finds of its parent.
const prisoner = `
for dir in /proc/[0-9]*; do
	tr '\0' '\n' <$dir/environ 2>/dev/null | grep -q "^AGBOX_AGENT_ID=$AGBOX_PARENT" && echo process of the parent
done
[ -e /tmp/secret ] && echo file of the parent
ls /var/log/agents-sandbox | grep -q "$PARENT_EXEC" && echo logs of the parent
find / -xdev -name agent.sock 2>/dev/null | grep -v '^/.agbox/run/agent.sock$'
AGBOX_TOKEN=$STOLEN agbox-agent send neighbour stolen 2>/dev/null; echo "token $?"
kill -0 $PARENT_PID 2>/dev/null && tr '\0' '\n' </proc/$PARENT_PID/environ | grep -q "^AGBOX_AGENT_ID=$AGBOX_PARENT" && echo signal to the parent
# What was copied are links: they lead to what is here.
cat links/marker links/logs/*.stdout.log 2>/dev/null | grep -o 'only of the parent'
[ "$(readlink links/host)" = /proc/1/root/etc/shadow ] && echo links kept
agbox-agent done complete
`

// TestAChildBehindABorderFindsNothingOfItsParent gives a child the token of its parent, and more
// than it could find out by itself.
func TestAChildBehindABorderFindsNothingOfItsParent(t *testing.T) {
	t.Parallel()
	Row(t, 102, "a child in a stack of its own looks for the processes, files, socket and token of its parent")
	in := harness.New(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "box", harness.ImageDebian, "--workspace", dir)
	neighbour := in.Must(t, "agent", "spawn", "neighbour", "--in", "box", "--", "sleep", "1000")
	parent := in.Must(t, "agent", "spawn", "parent", "--in", "box", "--may-spawn", "worker", "--agent-env", "PRISONER="+prisoner, "--", "bash", "-c", `
		cd /workspace || exit 90
		echo only of the parent | tee /tmp/secret >/tmp/marker; echo only of the parent
		mkdir links; ln -s /tmp/marker links/marker; ln -s /var/log/agents-sandbox links/logs; ln -s /proc/1/root/etc/shadow links/host
		agbox-agent spawn --class worker --name prisoner --stack den --env STOLEN=$AGBOX_TOKEN --env PARENT_PID=$$ \
			--env PARENT_EXEC=$AGBOX_AGENT_ID -- bash -c "$PRISONER" || exit 91
		agbox-agent wait prisoner >/dev/null; agbox-agent recv --no-wait | grep -q stolen && exit 92
		agbox-agent done complete`)
	if out := in.Must(t, "agent", "wait", parent); !strings.Contains(out, "COMPLETED") {
		t.Error(out)
	}
	if got := in.Must(t, "agent", "logs", "prisoner"); got != "token 3\nlinks kept" {
		t.Errorf("it has found:\n%s", got)
	}
	if got := in.Must(t, "agent", "inbox", "neighbour"); strings.Contains(got, "stolen") {
		t.Errorf("its message arrived: %s", got)
	}
	in.Must(t, "agent", "kill", neighbour)
}

// TestASpawnFromInsideGainsNothing has a parent with rights that its child must not have, and
// fields that no program may set.
func TestASpawnFromInsideGainsNothing(t *testing.T) {
	t.Parallel()
	Row(t, 103, "a program asks for a sandbox with more than its own, or with all that its own has")
	in := harness.New(t)
	data := t.TempDir()
	in.Create(t, "box", harness.ImageDebian, "--cap-add", "SYS_PTRACE", "--allow-host", "--memory", "512m", "--pids-limit", "300",
		"--mount", data+":/data", "--publish", "8000", "--env", "API_KEY=canary", "--label", "a=b")
	parent := in.Must(t, "agent", "spawn", "parent", "--in", "box", "--may-spawn", "worker", "--", "bash", "-c", `
		mkdir -p /tmp/out
		for extra in '"image":"`+harness.ImageBusybox+`"' '"mounts":[{"source":"/","target":"/h"}]' '"build":{"dockerfile_inline":"FROM scratch"}' \
			'"security":{"privileged":true}' '"devices":["/dev/kvm"]' '"cap_add":["SYS_ADMIN"]' '"ports":[{"container_port":1}]' '"services":[{"name":"s","image":"x"}]' \
			'"derived":{"parent":"init"}' '"sandbox_id":"box"' '"user":"0"' '"agent":{"may_spawn":{"sandboxes":100}}' '"may_spawn":{}' '"allow_dangerous_mounts":true' \
			'"share_mounts":[{"target":"/data","writable":true}]' '"share_mounts":[{"target":"/"}]' '"share_mounts":[{"target":"/data","source":"/"}]' \
			'"share_tools":["ssh-agent"]' '"workspace":"shared"' '"workspace":"/etc"' '"limits":{"memory":"1g"}' '"limits":{"memory":"unlimited"}' '"limits":{"pids":301}' \
			'"limits":{"memory":"-1"}' '"limits":{"pids":-1}'; do
			agbox-agent api spawn '{"class":"worker","command":["true"],"sandbox":"new",'"$extra"'}' >/tmp/answer 2>/dev/null
			[ $? = 4 ] || echo "accepted: $extra: $(cat /tmp/answer)"
		done
		grep CapBnd /proc/self/status
		agbox-agent spawn --class worker --name child --sandbox new -- bash -c '
			grep CapBnd /proc/self/status; [ -e /data ] && echo data; getent hosts host.docker.internal; echo $API_KEY
			agbox-agent done complete' || exit 90
		agbox-agent wait child >/dev/null; agbox-agent done complete`)
	in.Must(t, "agent", "wait", parent)
	of, child := in.Must(t, "agent", "logs", parent), in.Must(t, "agent", "logs", "child")
	if strings.Contains(of, "accepted") || !strings.HasPrefix(of, "CapBnd:") {
		t.Errorf("the parent has got:\n%s", of)
	}
	of, _, _ = strings.Cut(of, "\n")
	own, more, _ := strings.Cut(child, "\n")
	if own == of || !strings.HasPrefix(own, "CapBnd:") || more != "canary" {
		t.Errorf("the child has\n%s\nits parent %s", child, of)
	}
	if got := in.Must(t, "inspect", "agent-"+in.AgentID(t, "child")); strings.Contains(got, "8000") || strings.Contains(got, "a: b") {
		t.Errorf("its sandbox is\n%s", got)
	}
	for _, c := range in.Inventory(t).Containers {
		if c.Limits.Memory != 512<<20 || c.Limits.PIDs != 300 {
			t.Errorf("%s has the limits %+v", c.Name, c.Limits)
		}
	}
	if n := len(strings.Fields(in.Must(t, "ls", "-q", "-a"))); n != 2 {
		t.Errorf("there are %d sandboxes", n)
	}
}

// TestAFloodOfSpawnsWithSandboxesIsBounded: also if the agents end at once, or come from a child.
func TestAFloodOfSpawnsWithSandboxesIsBounded(t *testing.T) {
	t.Parallel()
	Row(t, 104, "a program spawns agents with sandboxes in a loop, through children too")
	in := harness.New(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "agbox.yaml")
	if err := os.WriteFile(file, []byte("image: "+harness.ImageBusybox+"\nagent: {may_spawn: {depth: 3, children: 100, sandboxes: 3}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const flood = `for i in 1 2 3 4 5 6 7 8 9 10; do agbox-agent spawn --sandbox new -- true 2>&1 | grep -o 'may have 3'; done`
	parent := in.Must(t, "agent", "spawn", "-f", file, "--", "sh", "-c", `
		child=$(agbox-agent spawn --sandbox new -- sh -c "`+strings.ReplaceAll(flood, `$`, `\$`)+`; agbox-agent done complete") || exit 90
		agbox-agent wait $child | grep -q COMPLETED || exit 91
		`+flood+`; agbox-agent done complete`)
	if out := in.Must(t, "agent", "wait", parent); !strings.Contains(out, "COMPLETED") {
		t.Fatal(out)
	}
	// One of the child, and two others; the parent's is beside that.
	if n := len(strings.Fields(in.Must(t, "ls", "-q", "-a"))); n != 4 {
		t.Errorf("there are %d sandboxes", n)
	}
	if n := strings.Count(in.Must(t, "agent", "logs", parent), "may have 3"); n != 10 {
		t.Errorf("%d of 10 were refused to the parent", n)
	}
}

// TestAHostileWorkspaceIsNotCopied: the name of the workspace leads elsewhere by now, and its
// content is more than the disk has.
func TestAHostileWorkspaceIsNotCopied(t *testing.T) {
	t.Parallel()
	Row(t, 105, "the workspace to be copied is a link, or has a file of holes that is larger than any disk")
	in := harness.New(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "box", harness.ImageDebian, "--workspace", dir+":/work/space")
	parent := in.Must(t, "agent", "spawn", "parent", "--in", "box", "--may-spawn", "worker", "--", "bash", "-c", `
		cd /; truncate -s 9000G /work/space/holes
		agbox-agent spawn --class worker --name holes --sandbox new -- true; agbox-agent wait holes
		mv /work/space /work/was; ln -s /etc /work/space
		agbox-agent spawn --class worker --name link --sandbox new -- true; agbox-agent wait link
		agbox-agent done complete`)
	in.Must(t, "agent", "wait", parent)
	out := in.Must(t, "agent", "logs", parent)
	for _, want := range []string{"larger than it may be", "is no folder"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not said:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "\tFAILED\t"); n != 2 {
		t.Errorf("%d of 2 have failed:\n%s", n, out)
	}
}
