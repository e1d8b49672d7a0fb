package agents

import (
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

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
	if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), runtime.PrimaryName(box), container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	becomes(t, in, "revives", "ORPHANED")
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
		wantWord(t, in, name, "PAUSED")
		in.Must(t, "agent", "resume", name)
		becomes(t, in, name, "ORPHANED")
		in.Must(t, "agent", "pause", name)
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
