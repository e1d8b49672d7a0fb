package agents

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAMessageWakesAnAgentWhoseProgramHasEnded has an agent that is IDLE until its program was
// ended for that. Its sandbox is stopped and the daemon killed. Another agent writes to it then,
// and its next program has the message.
func TestAMessageWakesAnAgentWhoseProgramHasEnded(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Create(t, "other", harness.ImageBusybox)
	id := spawnSpec(t, in, `
		[ $AGBOX_INCARNATION = 1 ] && { agbox-agent pause idle; exit 75; }
		agbox-agent recv | grep '"text":"more work"' || exit 90
		agbox-agent done complete`, &agboxv1.AgentSpec{Name: "one", IdleTimeout: durationpb.New(time.Millisecond), Retry: &agboxv1.AgentRetry{Attempts: 1}})
	a, err := in.Client(t).WaitAgentHalted(harness.Bounded(t), id)
	if err != nil || a.GetWord() != "IDLE" || a.GetIncarnation() != 1 {
		t.Fatalf("the agent is %v, %v", a, err)
	}
	in.Must(t, "stop", "demo")
	in.KillDaemon(t)
	teller := spawn(t, in, `agbox-agent send one "more work" && agbox-agent done complete`, "teller", "--in", "other", "--reach", "sandbox:demo")
	await(t, in, teller, "COMPLETED")
	a = await(t, in, id, "COMPLETED")
	if a.GetIncarnation() != 2 || a.GetCrashes() != 0 {
		t.Errorf("after %d incarnations it has %d crashes", a.GetIncarnation(), a.GetCrashes())
	}
	if out := in.Must(t, "agent", "logs", id); strings.Count(out, `"from":"`+teller+`"`) != 1 {
		t.Errorf("it has received %q", out)
	}
	if got := strings.Join(history(t, in.Client(t), id), ", "); !strings.HasSuffix(got, "PAUSED IDLE, INCARNATION_ENDED DRAINED, PAUSED IDLE, WOKEN, BEGUN, RESUMED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED") {
		t.Errorf("its history is %s", got)
	}
}
