package supervisor_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

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
	req := sh("e", `trap "exit 9" TERM; while :; do sleep 0.01; done`)
	req.TimeoutMs, req.GraceMs = 1000, 3600_000 // the trap is set by then
	if r := b.run(req); r.GetEndCause() != byTimeout || !r.GetCancelled() || r.GetExitCode() != 9 || r.GetSignal() != 0 {
		t.Error(r)
	}
}

// It ignores SIGTERM and has left a process that did everything to be forgotten.
func TestATimeoutKillsTheWholeTree(t *testing.T) {
	b := newBox(t)
	pids := b.fifo("pids")
	req := sh("e", fmt.Sprintf(`(setsid sh -c 'trap "" TERM; echo $$ > %s; while :; do sleep 1; done' &); trap "" TERM; while :; do sleep 1; done`, pids.Name()))
	req.TimeoutMs, req.GraceMs = 2000, 20
	b.start(b.dial(), req)
	pid := number(t, pids)
	if r := b.end("e"); r.GetEndCause() != byTimeout || r.GetSignal() != int32(syscall.SIGKILL) {
		t.Error(r)
	}
	eventually(t, "the hidden process was killed", func() bool { return !alive(pid) })
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
	ready := b.fifo("ready")
	req := sh("e", `trap "echo > `+ready.Name()+`" TERM; while :; do sleep 0.01; done`)
	req.TimeoutMs, req.GraceMs = 1000, 3600_000
	b.start(c, req)
	word(t, ready) // the timeout has come
	if running, err := c.Cancel(t.Context(), "e", 0); err != nil || !running {
		t.Fatal(running, err)
	}
	if r := b.end("e"); r.GetEndCause() != byTimeout {
		t.Error(r)
	}
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
	if r := b.status("e"); r.GetEndCause() != byNobody || r.GetSignal() != int32(syscall.SIGTERM) {
		t.Error(r)
	}
}
