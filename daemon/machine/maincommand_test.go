package machine

import (
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// ofMain marks an event of an exec as that of the container's own command.
func ofMain(ev *agboxv1.SandboxEvent) *agboxv1.SandboxEvent {
	ev.GetExec().Main = true
	return ev
}

func TestTheMainCommandDoesNotKeepASandboxFromBeingIdle(t *testing.T) {
	up := Observation{Looked: true, Leftovers: true, Primary: primary(runtime.StateRunning), Connected: true}
	idle := Rules{IdleTTL: time.Minute}
	r := Fold(stream(accepted, ready), ofMain(event(3, started, "m"))) // ready at t0+2s
	due := t0.Add(2*time.Second + time.Minute)
	if step := Next(r, up, idle, due.Add(-time.Second)); step.Do != Rest || !step.Wake.Equal(due) {
		t.Errorf("while it runs: %s, wake %s; want rest until %s", step.Do, step.Wake, due)
	}
	if step := Next(r, up, idle, due); step.Event.GetEventType() != stopReq {
		t.Errorf("when due: %s, want a stop request", step.Do)
	}
	over := Fold(r, ofMain(event(50, finished, "m")))
	if step := Next(over, up, idle, due.Add(-time.Second)); step.Do != Rest || !step.Wake.Equal(due) {
		t.Errorf("after its end: %s, wake %s; want rest until %s", step.Do, step.Wake, due)
	}
	if used := Fold(r, event(4, started, "x")); Next(used, up, idle, due.Add(time.Hour)).Do != Rest {
		t.Error("an exec beside it counts no more")
	}
}

func TestTheMainCommandIsRecordedBeforeTheEngineIsAsked(t *testing.T) {
	r := stream(accepted, ready)
	if step := Next(r, Observation{Connected: true, MainDue: true}, Rules{}, t0); step.Do != RecordMain {
		t.Errorf("Next says %s, want %s", step.Do, RecordMain)
	}
	if step := Next(r, Observation{ConnectFailed: true, MainDue: true}, Rules{}, t0); step.Do != Look {
		t.Errorf("without a link Next says %s, want %s", step.Do, Look)
	}
}

func TestRetentionKeepsTheLastUseAndNotTheEndOfTheMainCommand(t *testing.T) {
	events := append(execsOf(1), ofMain(event(5, started, "m")), ofMain(event(6, finished, "m"))) // x1 ends at t0+4s
	trim := historyOf(events...).Trim(Retention{KeepExecs: time.Second, MaxExecs: 10, MaxEvents: 100}, allRecorded, t0.Add(time.Hour))
	if got := text(trim); got != "x1[] m[5 6]" {
		t.Errorf("what goes is %q, want the events of m and the records of both", got)
	}
}
