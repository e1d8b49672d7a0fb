package docker

import (
	"context"
	"sync"

	"github.com/agbox/agbox/runtime"
)

// pulls has the pulls in progress. Concurrent callers of the same image share one.
type pulls struct {
	mu      sync.Mutex // guards running and waiters, latest and changed of each entry; not held during I/O
	running map[runtime.ImageRequest]*sharedPull
	wg      sync.WaitGroup
}

type sharedPull struct {
	// waiters is the number of callers that wait. The last one to leave cancels the pull.
	waiters int
	cancel  context.CancelFunc
	latest  runtime.PullProgress
	// changed is closed and replaced when latest changes.
	changed chan struct{}
	// done is closed when the pull has ended; latest and err are final then.
	done chan struct{}
	err  error
}

// share waits for the pull of the image and starts it if there is none. If ctx is
// cancelled, only this caller stops waiting; the pull continues for the others. It
// calls progress in the caller's goroutine.
func (p *pulls) share(ctx context.Context, want runtime.ImageRequest, pull func(context.Context, func(runtime.PullProgress)) error, progress func(runtime.PullProgress)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	mine := p.join(ctx, want, pull)
	for {
		p.mu.Lock()
		latest, changed := mine.latest, mine.changed
		p.mu.Unlock()
		if progress != nil && latest.LayersTotal > 0 {
			progress(latest)
		}
		select {
		case <-changed:
		case <-mine.done:
			if progress != nil && mine.latest != latest {
				progress(mine.latest)
			}
			return mine.err
		case <-ctx.Done():
			p.leave(want, mine)
			return ctx.Err()
		}
	}
}

func (p *pulls) join(ctx context.Context, want runtime.ImageRequest, pull func(context.Context, func(runtime.PullProgress)) error) *sharedPull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if there := p.running[want]; there != nil {
		there.waiters++
		return there
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	made := &sharedPull{waiters: 1, cancel: cancel, changed: make(chan struct{}), done: make(chan struct{})}
	if p.running == nil {
		p.running = make(map[runtime.ImageRequest]*sharedPull)
	}
	p.running[want] = made
	p.wg.Go(func() {
		defer cancel()
		err := pull(life, func(now runtime.PullProgress) {
			p.mu.Lock()
			defer p.mu.Unlock()
			made.latest = now
			close(made.changed)
			made.changed = make(chan struct{})
		})
		p.mu.Lock()
		if p.running[want] == made {
			delete(p.running, want)
		}
		p.mu.Unlock()
		made.err = err
		close(made.done)
	})
	return made
}

func (p *pulls) leave(want runtime.ImageRequest, left *sharedPull) {
	p.mu.Lock()
	left.waiters--
	last := left.waiters == 0
	if last && p.running[want] == left {
		delete(p.running, want) // the next caller starts a new pull
	}
	p.mu.Unlock()
	if last {
		left.cancel()
		<-left.done
	}
}
