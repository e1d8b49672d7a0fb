package build

import (
	"context"
	"sync"
)

// shared has the builds in progress. Callers with the same key share one.
type shared struct {
	mu      sync.Mutex // guards running and the fields of its entries that say so; not held during I/O
	running map[string]*job
	work    sync.WaitGroup // the builds
}

// job is one build in progress.
type job struct {
	cancel context.CancelFunc
	// waiters is the number of callers that wait; the last one to leave cancels the build.
	// line is the newest line of output. changed is closed and replaced when line changes.
	// All three are guarded by shared.mu.
	waiters int
	line    string
	changed chan struct{}
	// done is closed when the build has ended; err is final then.
	done chan struct{}
	err  error
}

// do waits for the build with the key and starts it if there is none; started is false if
// there was one, and build is not called then. If ctx ends, only this caller stops waiting.
// The last one cancels the build and waits for its end. do calls progress in the caller's
// goroutine; progress may be nil.
func (s *shared) do(ctx context.Context, key string, build func(context.Context, func(line string)) error, progress func(string)) (started bool, err error) {
	j, started := s.join(ctx, key, build)
	defer s.leave(key, j) // also if progress panics
	told := ""
	tell := func() (changed <-chan struct{}) {
		s.mu.Lock()
		line, changed := j.line, j.changed
		s.mu.Unlock()
		if line != told && progress != nil {
			progress(line)
			told = line
		}
		return changed
	}
	for {
		select {
		case <-tell():
		case <-j.done:
			tell() // the last line
			return started, j.err
		case <-ctx.Done():
			return started, ctx.Err()
		}
	}
}

func (s *shared) join(ctx context.Context, key string, build func(context.Context, func(string)) error) (j *job, started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if there := s.running[key]; there != nil {
		there.waiters++
		return there, false
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j = &job{cancel: cancel, waiters: 1, changed: make(chan struct{}), done: make(chan struct{})}
	if s.running == nil {
		s.running = make(map[string]*job)
	}
	s.running[key] = j
	s.work.Go(func() {
		defer cancel()
		err := build(life, func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			j.line = line
			close(j.changed)
			j.changed = make(chan struct{})
		})
		s.mu.Lock()
		if s.running[key] == j {
			delete(s.running, key)
		}
		s.mu.Unlock()
		j.err = err
		close(j.done)
	})
	return j, true
}

// leave stops waiting. The last one to leave cancels the build and waits for its end, and the
// next caller starts a new one.
func (s *shared) leave(key string, left *job) {
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
