package agents

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// parent spawns a child that ends at once and two that go on.
const parent = `agbox-agent spawn --class worker --name quick -- true && agbox-agent wait quick &&
	agbox-agent spawn --class worker --name one -- sleep 1000 && agbox-agent spawn --class worker --name two -- sleep 1000 || exit 90; `

func TestTheChildrenOfAnAgentThatHasEndedAreAdopted(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	boss := spawn(t, in, parent+"agbox-agent done complete", "boss", "--in", "demo", "--may-spawn", "worker")
	await(t, in, "boss", "COMPLETED")
	for _, name := range []string{"one", "two"} {
		running(t, in, name, 1)
		harness.Eventually(t, name+" is adopted", func() bool {
			return strings.Contains(strings.Join(history(t, in.Client(t), name), " "), "REPARENTED")
		})
		in.Must(t, "agent", "kill", "--now", name)
	}
	inbox := in.Must(t, "agent", "inbox", "init")
	for _, want := range []string{
		"boss is COMPLETED.", "[ADOPTED] one is your child now: its parent " + boss + " has ended.", "[ADOPTED] two is your child now",
		"[SIGCHLD] one is ABORTED.", "[SIGCHLD] two is ABORTED.",
	} {
		if strings.Count(inbox, want) != 1 {
			t.Errorf("the inbox of init has %d times %q:\n%s", strings.Count(inbox, want), want, inbox)
		}
	}
	if strings.Contains(inbox, "quick is") {
		t.Errorf("init was told of the child of another agent:\n%s", inbox)
	}
	refused := in.Agbox(t, "agent", "rm", "boss").Want(t, 4)
	if !strings.Contains(refused.Stderr, "has children: quick. Remove them first") {
		t.Errorf("the removal of a parent is refused with %q", refused.Stderr)
	}
	in.Must(t, "agent", "rm", "--cascade", "boss")
	if left := in.Must(t, "agent", "ls", "-aq", "--parent", "init"); len(strings.Fields(left)) != 2 {
		t.Errorf("after the removal init has the children %q", left)
	}
}

// TestAWholeTreeIsAwaited: the child is adopted by init when its parent ends, and then spawns no
// more; the grandchild fails.
func TestAWholeTreeIsAwaited(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(project(t, "image: "+harness.ImageBusybox+"\nagent: {may_spawn: {classes: [worker], depth: 2}}\n"), "agbox.yaml")
	spawn(t, in, `agbox-agent spawn --class worker --name child -- sh -c '
			while [ ! -e /tmp/go ]; do sleep 0.05; done
			agbox-agent spawn --class worker --name grandchild -- sh -c "agbox-agent done fail" && agbox-agent done complete' || exit 90
		agbox-agent done complete`, "boss", "-f", file)
	boss := await(t, in, "boss", "COMPLETED")
	in.Must(t, "agent", "spawn", "stranger", "--in", boss.GetSandboxId(), "--", "sleep", "1000")
	waiting := in.Start(t, "agent", "wait", "--tree", "boss")
	waiting.AwaitOutput(t, "boss\tCOMPLETED\n")
	in.Must(t, "exec", boss.GetSandboxId(), "--", "touch", "/tmp/go")
	got := waiting.Wait(t).Want(t, 1)
	if got.Stdout != "boss\tCOMPLETED\nchild\tCOMPLETED\ngrandchild\tFAILED\n" && got.Stdout != "boss\tCOMPLETED\ngrandchild\tFAILED\nchild\tCOMPLETED\n" {
		t.Errorf("it prints\n%s", got.Stdout)
	}
	in.Agbox(t, "agent", "wait", "--tree", "init").Want(t, 2)
}

func TestATreeOfAgentsIsShownAndKilled(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	spawn(t, in, parent+"sleep 1000", "boss", "--in", "demo", "--may-spawn", "worker")
	for _, name := range []string{"boss", "one", "two"} {
		harness.Eventually(t, name+" exists", func() bool { return in.Agbox(t, "agent", "inspect", name).Code == 0 })
		running(t, in, name, 1)
	}
	tree := in.Must(t, "agent", "tree")
	var names []string
	for _, line := range strings.Split(tree, "\n")[1:] {
		names = append(names, line[:strings.Index(strings.TrimLeft(line, " ")+" ", " ")+len(line)-len(strings.TrimLeft(line, " "))])
	}
	if got := strings.Join(names, ","); got != "init,  boss,    one,    two" {
		t.Errorf("the tree is %q:\n%s", got, tree)
	}
	in.Must(t, "agent", "kill", "--now", "--cascade", "boss")
	for _, name := range []string{"boss", "one", "two"} {
		await(t, in, name, "ABORTED")
	}
}

func TestAnAgentThatIsAskedToEndReportsItsOutcome(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	spawn(t, in, `agbox-agent recv > /tmp/got && grep -q '\[SIGTERM\]' /tmp/got || exit 90
		agbox-agent recv --timeout 1ms 1; agbox-agent done complete "as you wish"`, "willing", "--in", "demo")
	running(t, in, "willing", 1)
	in.Must(t, "agent", "kill", "--graceful", "willing")
	if a := await(t, in, "willing", "COMPLETED"); a.GetMessage() != "as you wish" {
		t.Errorf("it says %q", a.GetMessage())
	}
	in.Agbox(t, "agent", "kill", "--graceful", "--now", "willing").Want(t, 2)
}

// TestTheRemovalOfATreeEndsNoAgentUnasked: a refusal names what ends the agents if some have not
// ended, and -f, which ends them, only if all have.
func TestTheRemovalOfATreeEndsNoAgentUnasked(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(project(t, "image: "+harness.ImageBusybox+"\nmemory_limit: 256m\nagent: {may_spawn: {depth: 2}, cleanup_after: 1h}\n"), "agbox.yaml")
	var boxes []string
	for _, boss := range []string{"first", "second"} {
		spawn(t, in, "agbox-agent spawn --name child-of-"+boss+" --sandbox new -- agbox-agent done complete && sleep 1000", boss, "-f", file)
		boxes = append(boxes, await(t, in, awaitNamed(t, in, "child-of-"+boss), "COMPLETED").GetSandboxId())
		in.Must(t, "exec", "-d", boxes[len(boxes)-1], "--", "sleep", "1000")
	}
	refused := func(want, not string) {
		t.Helper()
		if r := in.Agbox(t, "agent", "rm", "--cascade", "first").Want(t, 4); !strings.Contains(r.Stderr, want) || strings.Contains(r.Stderr, not) {
			t.Errorf("the removal is refused with %q; want %q and not %q", r.Stderr, want, not)
		}
	}
	refused(`and cannot be removed; "agbox agent kill first" ends it.`, "rm -f")
	running(t, in, "first", 1)
	in.Must(t, "agent", "kill", "first")
	refused("would lose 1 running command (sleep 1000). `agbox ps "+boxes[0]+"` lists the commands. `agbox agent rm -f first --cascade` removes it anyway.", "agent kill")
	in.Must(t, "agent", "rm", "-f", "first", "--cascade")
	running(t, in, "second", 1)
	in.Must(t, "agent", "rm", "-f", "--cascade", "second")
	for _, agent := range []string{"first", "second", "child-of-first", "child-of-second"} {
		in.Agbox(t, "agent", "inspect", agent).Want(t, 3)
	}
	for _, box := range boxes {
		if err := in.Client(t).WaitDeleted(harness.Bounded(t), box); err != nil {
			t.Error(err)
		}
	}
}
