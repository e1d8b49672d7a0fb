package agents

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAnApprovalComesAfterTheProgramHasEnded pauses an agent until its program is drained for
// idling, stops its sandbox, kills the daemon, and approves then.
func TestAnApprovalComesAfterTheProgramHasEnded(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	c := in.Client(t)
	if _, err := c.SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: box, Spec: &agboxv1.AgentSpec{
		Name: "one", Command: []string{"sh", "-c", willing}, IdleTimeout: durationpb.New(time.Millisecond),
	}}); err != nil {
		t.Fatal(err)
	}
	up(t, in, "one")
	in.Must(t, "agent", "pause", "-m", "look first", "one")
	a, err := c.WaitAgentHalted(harness.Bounded(t), "one")
	if err != nil || a.GetWord() != "WAITING_FOR_APPROVAL" || a.GetMessage() != "look first" {
		t.Fatalf("the agent is %v, %v", a, err)
	}
	if r := in.Agbox(t, "agent", "resume", "one").Want(t, 4); !strings.Contains(r.Stderr, `"agbox agent approve `) {
		t.Errorf("resume is refused with %q", r.Stderr)
	}
	in.Must(t, "stop", "demo")
	in.KillDaemon(t)
	in.Must(t, "agent", "approve", "one")
	await(t, in, "one", "COMPLETED")
	wantHistory(t, in, "one", "SPAWNED, BEGUN, PHASE, PHASE, PAUSED APPROVAL, INCARNATION_ENDED DRAINED, PAUSED APPROVAL, WOKEN, BEGUN, RESUMED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
	for _, args := range [][]string{{"agent", "pause", "one"}, {"agent", "deny", "one"}} {
		if r := in.Agbox(t, args...).Want(t, 4); !strings.Contains(r.Stderr, "is COMPLETED and cannot be") {
			t.Errorf("%v is refused with %q", args, r.Stderr)
		}
	}
}
