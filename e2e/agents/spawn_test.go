package agents

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAgentsSpawnAgents(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "agent", "spawn", "stranger", "--in", "demo", "--", "sleep", "1000")
	id := spawn(t, in, `printf 'do part 1' > /tmp/part
		one=$(agbox-agent spawn --class worker --name one --key 1 --work /tmp/part --env PART=1 -- \
			sh -c '[ "$(cat $AGBOX_WORK)" = "do part 1" ] && [ $PART = 1 ] && [ "$AGBOX_PARENT" = '$AGBOX_AGENT_ID' ]') || exit 90
		two=$(agbox-agent spawn --class worker --name two --key 2 -- sleep 1000) || exit 91
		[ "$(agbox-agent spawn --class worker --name two --key 2 -- sleep 1000)" = $two ] || exit 92
		agbox-agent wait one | grep COMPLETED || exit 93
		agbox-agent kill --mode now two || exit 94
		agbox-agent wait; agbox-agent children || exit 95
		agbox-agent spawn --class admin -- true; [ $? = 4 ] || exit 96
		agbox-agent spawn --class worker --env AGBOX_AGENT_ID=x -- true 2>&1 | grep -q "does not begin with AGBOX_" || exit 100
		agbox-agent api spawn '{"class":"worker","command":["true"],"mounts":[{"source":"/"}]}'; [ $? = 4 ] || exit 97
		agbox-agent kill stranger; [ $? = 4 ] || exit 98
		AGBOX_TOKEN=forged agbox-agent children; [ $? = 3 ] || exit 99
		agbox-agent done complete`, "boss", "--in", "demo", "--may-spawn", "worker")
	await(t, in, id, "COMPLETED")
	out := in.Agbox(t, "agent", "logs", id).Want(t, 0)
	if n := strings.Count(out.Stdout, "ABORTED\ttwo\tIt was killed by agent boss."); n != 2 {
		t.Errorf("the killed child is told %d times:\n%s", n, out.Stdout)
	}
	for _, want := range []string{"SPAWN_NOT_ALLOWED", "class \"admin\"", "\"mounts\" cannot be given", "\"stranger\""} {
		if !strings.Contains(out.Stdout+out.Stderr, want) {
			t.Errorf("%s is missing in:\n%s%s", want, out.Stdout, out.Stderr)
		}
	}
}

// TestASandboxStaysForChildren has a child that outlives the agent for which the sandbox was
// made.
func TestASandboxStaysForChildren(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(project(t, "image: "+harness.ImageBusybox+"\nagent: {may_spawn: {}, cleanup_after: 0s}\n"), "agbox.yaml")
	id := spawn(t, in, `agbox-agent spawn --name child -- sh -c 'while [ ! -e /tmp/go ]; do sleep 0.05; done' && agbox-agent done complete`, "-f", file)
	a := await(t, in, id, "COMPLETED")
	in.Must(t, "exec", a.GetSandboxId(), "--", "touch", "/tmp/go")
	await(t, in, "child", "COMPLETED")
	if err := in.Client(t).WaitDeleted(harness.Bounded(t), a.GetSandboxId()); err != nil {
		t.Error(err)
	}
}

func TestAStackIsAWorldOfItsOwn(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `agbox-agent spawn --class worker --name lead --stack team -- sh -c '
			[ $AGBOX_STACK = team ] && agbox-agent send stranger hello && agbox-agent send parent hello &&
			agbox-agent recv | grep -q STACK_BORDER && agbox-agent done complete' || exit 90
		agbox-agent wait; agbox-agent done complete`, "boss", "--in", "demo", "--may-spawn", "worker")
	in.Must(t, "agent", "spawn", "stranger", "--in", "demo", "--", "sleep", "1000")
	await(t, in, id, "COMPLETED")
	await(t, in, "lead", "COMPLETED")
	if out := in.Must(t, "agent", "ls", "-a", "--stack", "team", "-q"); strings.Count(out, "\n") != 0 || out == "" {
		t.Errorf("the stack has %q", out)
	}
}
