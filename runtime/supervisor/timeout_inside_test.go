package supervisor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// ending says when and why an exec was ended.
type ending struct {
	after time.Duration
	cause guestv1.EndCause
}

// limited lets an exec write at the given times and returns how it was ended.
func limited(t *testing.T, req *guestv1.StartRequest, writes ...time.Duration) (got []ending) {
	synctest.Test(t, func(t *testing.T) {
		s := newInside(t)
		req.ExecId, req.MaxLogBytes = "e", 1 // all but one byte is dropped
		w, fail := s.createLogs(t.Context(), req)
		if fail != nil {
			t.Fatal(fail.message)
		}
		defer func() { _ = w.Close() }()
		began := time.Now()
		l := newLimits(req, w, func(cause guestv1.EndCause) { got = append(got, ending{time.Since(began), cause}) })
		for _, at := range writes {
			time.Sleep(at - time.Since(began)) // on the clock of the synctest bubble
			synctest.Wait()
			w.Write(logs.Stderr, time.Now(), []byte("x"))
		}
		time.Sleep(time.Hour)
		l.stop()
		l.wait()
	})
	return got
}

func TestOutputPutsTheEndForSilenceOffAlsoWhenItIsDropped(t *testing.T) {
	got := limited(t, &guestv1.StartRequest{IdleTimeoutMs: 1000}, 900*time.Millisecond, 1800*time.Millisecond, 2000*time.Millisecond)
	if len(got) != 1 || got[0] != (ending{3000 * time.Millisecond, guestv1.EndCause_END_CAUSE_IDLE_TIMEOUT}) {
		t.Error(got)
	}
}

func TestAnExecThatWritesNothingEndsAfterItsStart(t *testing.T) {
	got := limited(t, &guestv1.StartRequest{IdleTimeoutMs: 1000, TimeoutMs: 3600_001})
	if len(got) != 1 || got[0] != (ending{1000 * time.Millisecond, guestv1.EndCause_END_CAUSE_IDLE_TIMEOUT}) {
		t.Error(got)
	}
}

func TestOutputDoesNotPutTheTimeoutOff(t *testing.T) {
	got := limited(t, &guestv1.StartRequest{TimeoutMs: 1000}, 900*time.Millisecond, 1800*time.Millisecond)
	if len(got) != 1 || got[0] != (ending{1000 * time.Millisecond, guestv1.EndCause_END_CAUSE_TIMEOUT}) {
		t.Error(got)
	}
}

func TestNothingEndsAnExecWhoseLimitsWereStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newInside(t)
		req := &guestv1.StartRequest{ExecId: "e", TimeoutMs: 10, IdleTimeoutMs: 10}
		w, fail := s.createLogs(t.Context(), req)
		if fail != nil {
			t.Fatal(fail.message)
		}
		defer func() { _ = w.Close() }()
		l := newLimits(req, w, func(cause guestv1.EndCause) { t.Error(cause) })
		l.stop()
		time.Sleep(time.Hour)
		l.wait()
	})
}
