package supervisor_test

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	byNobody  = guestv1.EndCause_END_CAUSE_NONE
	byRequest = guestv1.EndCause_END_CAUSE_REQUEST
	byTimeout = guestv1.EndCause_END_CAUSE_TIMEOUT
	bySilence = guestv1.EndCause_END_CAUSE_IDLE_TIMEOUT
)

func TestATimeoutEndsAnExecAndKeepsItsRealStatus(t *testing.T) {
	b := newBox(t)
	inTime(t, 200*time.Millisecond, func(d time.Duration) bool {
		id := "e" + b.unique()
		req := sh(id, `trap "exit 9" TERM; echo set; while :; do sleep 0.01; done`)
		req.TimeoutMs, req.GraceMs = uint64(d.Milliseconds()), 3600_000
		r := b.run(req)
		if b.stdout(id) == "" {
			return false
		}
		if r.GetEndCause() != byTimeout || !r.GetCancelled() || r.GetExitCode() != 9 || r.GetSignal() != 0 {
			t.Error(r)
		}
		return true
	})
}

// The exec ignores SIGTERM and has left a process that hides in every way.
func TestATimeoutKillsTheWholeTree(t *testing.T) {
	b := newBox(t)
	inTime(t, 500*time.Millisecond, func(d time.Duration) bool {
		id := "e" + b.unique()
		req := sh(id, `(setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 1; done' &); trap "" TERM; echo set >&2; while :; do sleep 1; done`)
		req.TimeoutMs, req.GraceMs = uint64(d.Milliseconds()), 20
		r := b.run(req)
		pid, err := strconv.Atoi(strings.TrimSpace(b.stdout(id)))
		if err != nil || b.file("logs/"+logs.StderrName(id)) == "" {
			return false
		}
		if r.GetEndCause() != byTimeout || r.GetSignal() != int32(syscall.SIGKILL) {
			t.Error(r)
		}
		eventually(t, "the hidden process was killed", func() bool { return !alive(pid) })
		return true
	})
}

func TestSilenceEndsAnExec(t *testing.T) {
	b := newBox(t)
	req := sh("e", "echo one; exec sleep 1000")
	req.IdleTimeoutMs, req.GraceMs = 300, 3600_000
	if r := b.run(req); r.GetEndCause() != bySilence || r.GetSignal() != int32(syscall.SIGTERM) {
		t.Error(r)
	}
	silent := onTerminal(sh("f", `trap "" TERM; while :; do sleep 1; done`))
	silent.IdleTimeoutMs = 20
	if r := b.run(silent); r.GetEndCause() != bySilence || r.GetSignal() != int32(syscall.SIGKILL) {
		t.Error(r)
	}
}

func TestWhatEndsByItselfHasNoCause(t *testing.T) {
	b := newBox(t)
	req := sh("e", "exit 3")
	req.TimeoutMs, req.IdleTimeoutMs = 3600_000, 1<<63
	if r := b.run(req); r.GetEndCause() != byNobody || r.GetCancelled() || r.GetExitCode() != 3 {
		t.Error(r)
	}
}

func TestTheFirstCauseCounts(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	inTime(t, 200*time.Millisecond, func(d time.Duration) bool {
		id := "e" + b.unique()
		req := sh(id, `trap "echo asked" TERM; while :; do sleep 0.01; done`)
		req.TimeoutMs, req.GraceMs = uint64(d.Milliseconds()), 3600_000
		b.start(c, req)
		records, ended := b.ends(id), false
		eventually(t, "the timeout comes", func() bool {
			select {
			case r := <-records:
				ended = r.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_EXITED
			default:
			}
			return ended || b.stdout(id) != ""
		})
		if b.stdout(id) == "" {
			return false
		}
		if running, err := c.Cancel(t.Context(), id, 0); err != nil || !running {
			t.Fatal(running, err)
		}
		if r := b.end(id); r.GetEndCause() != byTimeout {
			t.Error(r)
		}
		return true
	})
	b.start(c, request("f", "sleep", "1000"))
	if running, err := c.Cancel(t.Context(), "f", time.Hour); err != nil || !running {
		t.Fatal(running, err)
	}
	if r := b.end("f"); r.GetEndCause() != byRequest || r.GetSignal() != int32(syscall.SIGTERM) {
		t.Error(r)
	}
}

func TestATimeoutThatIsStillToComeDoesNotHoldUpTheStop(t *testing.T) {
	b := newBox(t)
	req := request("e", "sleep", "1000")
	req.TimeoutMs, req.IdleTimeoutMs = 3600_000, 3600_000
	b.start(b.dial(), req)
	b.stop()
	if r := b.status("e"); r.GetEndCause() != guestv1.EndCause_END_CAUSE_STOP || r.GetSignal() != int32(syscall.SIGTERM) {
		t.Error(r)
	}
}
