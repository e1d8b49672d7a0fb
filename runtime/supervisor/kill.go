package supervisor

import (
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	// killRounds bounds the sweeps over a tree that keeps growing. With the pauses
	// between them they take about five seconds.
	killRounds = 60
	// The pause between two sweeps starts with firstPause and doubles up to lastPause.
	firstPause, lastPause = 2 * time.Millisecond, 100 * time.Millisecond
)

// cancel sends SIGTERM to the process group of an exec. After the grace period it kills
// what is left of the tree. It returns false if the exec is not running. The first cause
// is kept.
func (s *Supervisor) cancel(e *execution, grace time.Duration, cause guestv1.EndCause) bool {
	ch := s.registry.childOf(e)
	if ch == nil {
		return false
	}
	t := &tree{leader: ch.pid, mark: ch.mark, marker: markerVariable + "=" + e.id, known: make(map[key]bool)}
	if grace > 0 {
		// A process that is recorded now is found after the grace period even if it
		// leaves the tree meanwhile.
		s.look.do(func() { t.look(true) })
		if running, _ := s.children.signal(ch, syscall.SIGTERM, cause); !running {
			return false
		}
	} else if running, _ := s.children.signal(ch, syscall.SIGKILL, cause); !running {
		return false
	}
	if s.registry.planKill(e, time.Now().Add(grace), &s.work) {
		go func() {
			defer s.work.Done()
			defer s.registry.killDone(e)
			s.killLater(e, ch, t)
		}()
	}
	return true
}

// killLater waits for the end of the grace period and kills the tree. It does not wait if
// the leader has ended and nothing is left.
func (s *Supervisor) killLater(e *execution, ch *child, t *tree) {
	ended := e.ended
	for {
		at, hurry := s.registry.killTime(e)
		timer := time.NewTimer(time.Until(at))
		select {
		case <-timer.C:
			s.killTree(ch, t)
			return
		case <-hurry:
		case <-ended:
			ended = nil
			left := 0
			s.look.do(func() { left = len(t.look(false)) })
			if left == 0 {
				timer.Stop()
				return
			}
		case <-s.stopping: // the stop kills everything itself
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// killTree kills until nothing is left of the tree.
func (s *Supervisor) killTree(ch *child, t *tree) {
	s.killRepeatedly(func() []proc {
		alive, _ := s.children.signal(ch, syscall.SIGKILL, guestv1.EndCause_END_CAUSE_NONE)
		return t.look(alive)
	})
}

// killRepeatedly kills what look finds until it finds no process, at most killRounds times.
func (s *Supervisor) killRepeatedly(look func() []proc) {
	pause := firstPause
	for range killRounds {
		var found []proc
		s.look.do(func() {
			found = look()
			for _, p := range found {
				p.kill(syscall.SIGKILL)
			}
		})
		if len(found) == 0 {
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, lastPause)
	}
}

// signal sends one signal to the process group of an exec. It returns false if
// the exec is not running.
func (s *Supervisor) signal(e *execution, sig syscall.Signal) (bool, error) {
	ch := s.registry.childOf(e)
	if ch == nil {
		return false, nil
	}
	return s.children.signal(ch, sig, guestv1.EndCause_END_CAUSE_NONE)
}

const (
	// killWait is how long the stop waits for processes after SIGKILL.
	killWait = time.Second
	// outsideWait is how long a process outside the container may hold the output of a
	// dead process open.
	outsideWait = 500 * time.Millisecond
	// flushWait is how long the stop waits for the last output and status files.
	flushWait = 5 * time.Second
)

// stopAll ends every process below the supervisor, with SIGTERM first. It returns when
// output and status of all execs are in the files.
func (s *Supervisor) stopAll() {
	s.registry.close()
	close(s.stopping)
	s.children.stopping()
	t := &tree{known: make(map[key]bool)}
	s.look.do(func() { s.children.terminate(t.look(true)) })
	if !waitFor(s.children.gone(), s.cfg.Grace) {
		s.killRepeatedly(func() []proc { return t.look(true) })
		waitFor(s.children.gone(), killWait)
	}
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	if !waitFor(done, outsideWait) {
		s.abandon()
		// A process that survives SIGKILL is blocked in the kernel. Its exec is
		// abandoned, because the container must stop.
		waitFor(done, flushWait)
	}
}

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
