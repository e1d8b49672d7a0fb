package reconcile

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestANetworkThatIsTakenAwayIsNamedWithWhatMendsIt(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	primary, network := l.objects().Containers[0], l.objects().Networks[0]
	says := func(words ...string) func() bool {
		return func() bool {
			l.loop.Enqueue("a")
			said := l.loop.Condition(sb).Degraded
			for _, word := range words {
				if !strings.Contains(said, word) {
					return false
				}
			}
			return len(words) > 0 || said == ""
		}
	}
	l.engine.Detach(primary.ID, true)
	l.until("told how to attach it", says("docker network connect "+network.Name+" "+primary.Name))
	l.engine.Detach(primary.ID, false)
	l.until("well again", says())
	if err := l.engine.RemoveNetwork(t.Context(), network.ID); err != nil {
		t.Fatal(err)
	}
	l.until("told that the network is gone", says("network", "agbox rm a"))
}

func TestTheReasonOfASupervisorThatCannotBeTrustedIsShown(t *testing.T) {
	t.Parallel()
	failed := machine.Observation{ConnectFailed: true, Primary: &runtime.Container{State: runtime.StateRunning}}
	if got := restTrouble(failed, "It is a link.", ""); got != "It is a link." {
		t.Errorf("it says %q", got)
	}
	if got := restTrouble(failed, "", ""); !strings.Contains(got, "cannot be reached") {
		t.Errorf("it says %q", got)
	}
	if got := restTrouble(machine.Observation{}, "It was a link.", ""); got != "" {
		t.Errorf("linked again it says %q", got)
	}
}
