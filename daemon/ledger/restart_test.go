package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

func restart(t *testing.T, l *Ledger, id string, now bool) Sandbox {
	t.Helper()
	sb, err := l.RequestRestart(t.Context(), id, now)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestARestartIsRememberedUntilItIsStarted(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	ready(t, l, "a")
	asked := restart(t, l, "a", false)
	if again := restart(t, l, "a", false); again.LastSequence != asked.LastSequence {
		t.Error("a repeated request made another event")
	}
	if hurried := restart(t, l, "a", true); !hurried.Now || !hurried.Restart {
		t.Errorf("after a request without delay: %+v", hurried.Record)
	}
	emit(t, l, "a", agboxv1.EventType_SANDBOX_STOPPED)
	closeDB()
	l, _ = open(t, dir)
	if sb, _ := l.Sandbox("a"); sb.State != machine.Stopped || !sb.Restart {
		t.Errorf("after a restart of the daemon: %+v", sb.Record)
	}
	if sb := emit(t, l, "a", agboxv1.EventType_SANDBOX_RESUME_REQUESTED); sb.State != machine.Pending || sb.Restart {
		t.Errorf("started again: %+v", sb.Record)
	}
}

func TestAStopCancelsARestart(t *testing.T) {
	l := fresh(t)
	for _, id := range []string{"stopping", "stopped"} {
		ready(t, l, id)
		restart(t, l, id, false)
		if id == "stopped" {
			emit(t, l, id, agboxv1.EventType_SANDBOX_STOPPED)
		}
		sb, err := l.RequestStop(t.Context(), id, "test")
		if err != nil || sb.Restart || sb.Want != machine.WantStopped {
			t.Errorf("%s: %+v, %v", id, sb.Record, err)
		}
		if id == "stopping" {
			sb = emit(t, l, id, agboxv1.EventType_SANDBOX_STOPPED)
		}
		if step := machine.Next(sb.Record, machine.Observation{}, machine.Rules{}, sb.CreatedAt); step.Do != machine.Rest {
			t.Errorf("%s: the next step is %s", id, step.Do)
		}
	}
}

func TestARestartOfWhatDoesNotRunOnlyStartsIt(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	if _, err := l.RequestStop(t.Context(), "a", "test"); err != nil {
		t.Fatal(err)
	}
	// One that is being stopped is started afterwards.
	if sb := restart(t, l, "a", false); !sb.Restart || sb.State != machine.Ready {
		t.Errorf("while it is being stopped: %+v", sb.Record)
	}
	emit(t, l, "a", agboxv1.EventType_SANDBOX_STOPPED)
	if _, err := l.RequestStop(t.Context(), "a", "test"); err != nil {
		t.Fatal(err)
	}
	if sb := restart(t, l, "a", false); sb.State != machine.Pending || sb.Restart {
		t.Errorf("stopped: %+v", sb.Record)
	}
	gone(t, l, "a")
	_, err := l.RequestRestart(t.Context(), "a", false)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_INVALID_STATE)
	_, err = l.RequestRestart(t.Context(), "never", false)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
}
