package reconcile

import (
	"testing"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestASandboxBecomesReadyTogetherWithItsMainCommand(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.guests.main = "main-a"
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	// The record that shows READY also has the command: it is one commit.
	if sb, _ := l.ledger.Sandbox("a"); !sb.Execs["main-a"].Main || sb.InUse() {
		t.Errorf("the execs are %v", sb.Execs)
	}
	l.stop("a")
	if r := l.await("a", machine.Stopped); len(r.Execs) != 0 {
		t.Errorf("after the stop the execs are %v", r.Execs)
	}
}

// The supervisor counts its status files, which retention removes.
func TestAStartSaysWhichRunsOfTheMainCommandAreRecorded(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	for run := range uint32(3) {
		l.guests.mu.Lock()
		l.guests.main, l.guests.told = ids.MainRun("main-a", run+1), false
		l.guests.mu.Unlock()
		if run == 0 {
			l.create("a", runtimetest.FakeImage)
		} else {
			l.want(l.ledger.RequestResume, "a")
		}
		l.await("a", machine.Ready)
		if got := max(1, l.boot("a").GetMainRun()); got != run+1 {
			t.Errorf("start %d begins with run %d", run+1, got)
		}
		l.stop("a")
		l.await("a", machine.Stopped)
	}
}

func TestAMainCommandThatAnEarlierDaemonDidNotRecordIsRecorded(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	before := l.await("a", machine.Ready)
	n := l.next()
	n.guests.mu.Lock()
	n.guests.main = "main-a"
	n.guests.mu.Unlock()
	n.loop.Enqueue("a")
	n.until("the record of the command", func() bool {
		sb, _ := n.ledger.Sandbox("a")
		return sb.Execs["main-a"].Main
	})
	if sb, _ := n.ledger.Sandbox("a"); sb.LastSequence != before.LastSequence+1 || sb.State != machine.Ready {
		t.Errorf("the record is %+v", sb.Record)
	}
}
