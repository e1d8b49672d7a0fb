package supervisor

import (
	"math"
	"sync"
	"time"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

// limits ends an exec that runs too long or is silent for too long. It costs an idle exec
// nothing: timers sleep, and output does not restart them. When the timer for silence
// fires, it checks how long the exec has really been silent.
type limits struct {
	// end ends the exec.
	end     func(guestv1.EndCause)
	writer  *logs.Writer
	started time.Time
	idle    time.Duration

	// mu guards the fields below.
	mu     sync.Mutex
	timers []*time.Timer
	over   bool
	// busy counts the timer functions that run now.
	busy sync.WaitGroup
}

// limit sets the timers that a request asks for. They start now, on the monotonic clock.
// It returns nil if there is no limit.
func (s *Supervisor) limit(e *execution, req *guestv1.StartRequest, w *logs.Writer) *limits {
	if req.GetTimeoutMs() == 0 && req.GetIdleTimeoutMs() == 0 {
		return nil
	}
	grace := milliseconds(uint64(req.GetGraceMs()))
	return newLimits(req, w, func(cause guestv1.EndCause) { s.cancel(e, grace, cause) })
}

func newLimits(req *guestv1.StartRequest, w *logs.Writer, end func(guestv1.EndCause)) *limits {
	l := &limits{end: end, writer: w, started: time.Now(), idle: milliseconds(req.GetIdleTimeoutMs())}
	if total := milliseconds(req.GetTimeoutMs()); total > 0 {
		l.after(total, func() { l.end(guestv1.EndCause_END_CAUSE_TIMEOUT) })
	}
	if l.idle > 0 {
		l.after(l.idle, l.look)
	}
	return l
}

// look ends the exec if it has been silent for too long. Otherwise it runs again at the
// earliest time at which the limit can be reached.
func (l *limits) look() {
	last := l.started
	if at := l.writer.LastWrite(); at.After(last) {
		last = at
	}
	if left := l.idle - time.Since(last); left > 0 {
		l.after(left, l.look)
		return
	}
	l.end(guestv1.EndCause_END_CAUSE_IDLE_TIMEOUT)
}

// after calls fn later, unless the exec has ended by then.
func (l *limits) after(d time.Duration, fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.timers = append(l.timers[:min(len(l.timers), 1)], time.AfterFunc(d, func() {
		if l.enter() {
			defer l.busy.Done()
			fn()
		}
	}))
}

func (l *limits) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	l.busy.Add(1)
	return true
}

// stop ends the timers. It does not block; wait does.
func (l *limits) stop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.over = true
	timers := l.timers
	l.mu.Unlock()
	for _, t := range timers {
		t.Stop()
	}
}

// wait returns when no timer function runs any more.
func (l *limits) wait() {
	if l != nil {
		l.busy.Wait()
	}
}

// milliseconds returns n milliseconds, at most the maximum duration.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}
