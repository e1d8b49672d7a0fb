package agents

import (
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// TestAnApprovedAgentWaitsForNobody approves an agent whose program does not go on by itself. What a
// list, the answers and the refusals say must agree.
func TestAnApprovedAgentWaitsForNobody(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	spawn(t, in, `agbox-agent say here; sleep 1000`, "one", "--in", "demo")
	until(t, in, "one", "the daemon knows that its program uses agbox-agent", func(a *agboxv1.Agent) bool { return a.GetProgress().GetLastMessage() == "here" })
	in.Must(t, "agent", "pause", "-m", "look first", "one")
	if r := in.Agbox(t, "agent", "pause", "one").Want(t, 0); !strings.Contains(r.Stderr, "Nothing was changed: agent one is WAITING_FOR_APPROVAL. look first") {
		t.Errorf("a second pause says %q", r.Stderr)
	}
	if r := in.Agbox(t, "agent", "approve", "one").Want(t, 0); r.Stderr != "" {
		t.Errorf("approve says %q", r.Stderr)
	}
	const note = "It was approved, and its program was asked to go on."
	if list := in.Must(t, "agent", "ls", "--no-trunc"); !strings.Contains(list, "PAUSED") || !strings.Contains(list, note) || strings.Contains(list, "WAITING") {
		t.Errorf("the list is\n%s", list)
	}
	for _, verb := range []string{"approve", "resume"} {
		if r := in.Agbox(t, "agent", verb, "one").Want(t, 0); !strings.Contains(r.Stderr, "Nothing was changed: agent one is PAUSED. "+note) {
			t.Errorf("%s says %q", verb, r.Stderr)
		}
	}
	if r := in.Agbox(t, "agent", "deny", "one").Want(t, 4); !strings.Contains(r.Stderr, "is PAUSED and cannot be denied: it was approved already") {
		t.Errorf("deny is refused with %q", r.Stderr)
	}
	in.Must(t, "agent", "pause", "one")
	wantWord(t, in, "one", "WAITING_FOR_APPROVAL")
	in.Must(t, "agent", "deny", "one")
	wantWord(t, in, "one", "PAUSED")
}

// TestALostContainerFailsNoAgent removes the container of a user's sandbox. Whoever was to go on is
// ORPHANED then, also after it was drained or paused, until somebody decides.
func TestALostContainerFailsNoAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	for _, name := range []string{"drained", "asks", "revives"} {
		args := []string{name, "--in", "demo", "--on-loss", "ask"}
		if name == "revives" {
			args = args[:3]
		}
		spawn(t, in, willing, args...)
		up(t, in, name)
	}
	in.Must(t, "agent", "drain", "drained")
	in.Must(t, "agent", "pause", "asks")
	becomes(t, in, "drained", "PAUSED")
	becomes(t, in, "asks", "WAITING_FOR_APPROVAL")
	if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), runtime.PrimaryName(box), container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	becomes(t, in, "revives", "ORPHANED")
	until(t, in, "revives", "its sandbox cannot be started", func(a *agboxv1.Agent) bool {
		return strings.Contains(a.GetMessage(), "Its sandbox failed: ")
	})
	if told := in.Must(t, "agent", "inbox", "init"); !strings.Contains(told, "[SIGCHLD] revives is ORPHANED. Its sandbox failed: ") {
		t.Errorf("init is not told: %s", told)
	}
	if said := in.Agbox(t, "doctor").Stdout; !strings.Contains(said, "It is ORPHANED, and the container of its sandbox is gone: ") {
		t.Errorf("doctor does not name the agent: %s", said)
	}
	wantWord(t, in, "drained", "PAUSED")
	wantWord(t, in, "asks", "WAITING_FOR_APPROVAL")
	if r := in.Agbox(t, "agent", "resolve", "--reap", "asks").Want(t, 4); !strings.Contains(r.Stderr, `is WAITING_FOR_APPROVAL, and only an ORPHANED agent can be resolved; `) {
		t.Errorf("resolve is refused with %q", r.Stderr)
	}
	in.Must(t, "agent", "approve", "asks")
	in.Must(t, "agent", "resume", "drained")
	for _, name := range []string{"asks", "drained"} {
		becomes(t, in, name, "ORPHANED")
		in.Must(t, "agent", "drain", name)
		becomes(t, in, name, "PAUSED")
		in.Must(t, "agent", "resume", name)
		becomes(t, in, name, "ORPHANED")
		in.Must(t, "agent", "pause", name)
		becomes(t, in, name, "WAITING_FOR_APPROVAL")
		in.Must(t, "agent", "approve", name)
		becomes(t, in, name, "ORPHANED")
	}
	in.Must(t, "agent", "resolve", "--reap", "asks")
	await(t, in, "asks", "ABORTED")
	in.Must(t, "agent", "resolve", "--revive", "drained") // in vain
	until(t, in, "drained", "it is ORPHANED anew", func(a *agboxv1.Agent) bool {
		return a.GetWord() == "ORPHANED" && strings.Contains(a.GetMessage(), "Its sandbox failed: ") && a.GetObservation() == 0
	})
	in.Must(t, "agent", "resolve", "--revive", "revives")
	for _, name := range []string{"revives", "drained"} {
		in.Must(t, "agent", "kill", name)
		await(t, in, name, "ABORTED")
	}
}
