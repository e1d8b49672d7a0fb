package docker

import (
	"context"
	"sync"

	"github.com/agbox/agbox/runtime"
)

// pulls are the pulls under way: whoever wants the same image meanwhile waits for
// the same one.
type pulls struct {
	mu      sync.Mutex // guards running and the fields of each; not held while a pull works
	running map[runtime.ImageRequest]*sharedPull
	wg      sync.WaitGroup
}

type sharedPull struct {
	// waiters counts who still wants it; the last one who leaves cancels it.
	waiters int
	cancel  context.CancelFunc
	latest  runtime.PullProgress
	// changed is closed and replaced when latest changes.
	changed chan struct{}
	// done is closed when it has ended; err does not change any more then.
	done chan struct{}
	err  error
}

// share waits for a pull of the image, which it begins when there is none. A caller
// whose context ends leaves the others theirs. progress is called from this
// goroutine.
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
		delete(p.running, want) // who comes now begins anew
	}
	p.mu.Unlock()
	if last {
		left.cancel()
		<-left.done
	}
}
