package runtime

import (
	"context"
	"sync"
)

// Shared is work that several callers wait for, for example pulls of images: callers with the
// same key share one run. P is the progress that a run reports. The zero value is ready for use.
type Shared[K comparable, P any] struct {
	mu      sync.Mutex // guards running and the fields of its entries that say so; not held during I/O
	running map[K]*sharedRun[P]
	work    sync.WaitGroup // the runs
}

// sharedRun is one run in progress.
type sharedRun[P any] struct {
	cancel context.CancelFunc
	// waiters is the number of callers that wait; the last one to leave cancels the run.
	// latest is the newest of the reports. changed is closed and replaced when there is another
	// one. Shared.mu guards all four.
	waiters int
	latest  P
	reports int
	changed chan struct{}
	// done is closed when the run has ended; err is final then.
	done chan struct{}
	err  error
}

// Do waits for the run with the key and starts it if there is none; started is false if there
// was one, and run is not called then. If ctx ends, only this caller stops waiting; the last one
// cancels the run and waits for its end. Do calls progress in the caller's goroutine, and may
// skip reports; progress may be nil.
func (s *Shared[K, P]) Do(ctx context.Context, key K, run func(ctx context.Context, report func(P)) error, progress func(P)) (started bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	r, started := s.join(ctx, key, run)
	defer s.leave(key, r) // also if progress panics
	told := 0
	tell := func() (changed <-chan struct{}) {
		s.mu.Lock()
		latest, reports, changed := r.latest, r.reports, r.changed
		s.mu.Unlock()
		if reports != told && progress != nil {
			progress(latest)
		}
		told = reports
		return changed
	}
	for {
		select {
		case <-tell():
		case <-r.done:
			tell() // the last report
			return started, r.err
		case <-ctx.Done():
			return started, ctx.Err()
		}
	}
}

// Wait returns when nothing runs any more. Nobody may call Do meanwhile.
func (s *Shared[K, P]) Wait() { s.work.Wait() }

// Waiting returns the number of callers of Do that wait.
func (s *Shared[K, P]) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.running {
		n += r.waiters
	}
	return n
}

func (s *Shared[K, P]) join(ctx context.Context, key K, run func(context.Context, func(P)) error) (r *sharedRun[P], started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if there := s.running[key]; there != nil {
		there.waiters++
		return there, false
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r = &sharedRun[P]{cancel: cancel, waiters: 1, changed: make(chan struct{}), done: make(chan struct{})}
	if s.running == nil {
		s.running = make(map[K]*sharedRun[P])
	}
	s.running[key] = r
	s.work.Go(func() {
		defer cancel()
		err := run(life, func(now P) {
			s.mu.Lock()
			defer s.mu.Unlock()
			r.latest = now
			r.reports++
			close(r.changed)
			r.changed = make(chan struct{})
		})
		s.mu.Lock()
		if s.running[key] == r {
			delete(s.running, key)
		}
		s.mu.Unlock()
		r.err = err
		close(r.done)
	})
	return r, true
}

// leave stops waiting. The last one to leave cancels the run and waits for its end, and the next
// caller starts a new one.
func (s *Shared[K, P]) leave(key K, left *sharedRun[P]) {
	s.mu.Lock()
	left.waiters--
	last := left.waiters == 0
	if last && s.running[key] == left {
		delete(s.running, key)
	}
	s.mu.Unlock()
	if last {
		left.cancel()
		<-left.done
	}
}
