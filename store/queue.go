package store

import (
	"sync"
	"sync/atomic"
)

// update is one call of Update on its way through the writer.
type update struct {
	fn func(*Tx) error
	// taken is set once, by the writer that takes it or the caller that drops it.
	taken atomic.Bool
	// done is closed when err and panicked are final.
	done     chan struct{}
	err      error
	panicked any
}

func (u *update) finish(err error) {
	u.err = err
	close(u.done)
}

// queue holds the updates that wait for the writer.
type queue struct {
	// mu guards waiting and closed; some says that one of them has changed.
	mu      sync.Mutex
	some    *sync.Cond
	waiting []*update
	closed  bool
}

func (q *queue) init() { q.some = sync.NewCond(&q.mu) }

// add returns false once the queue is closed.
func (q *queue) add(u *update) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, u)
	q.some.Signal()
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.some.Broadcast()
}

// take adds up to limit-len(first) waiting updates to first. With an empty first it waits
// for one, and returns nothing only when the queue is closed and empty.
func (q *queue) take(first []*update, limit int) []*update {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := first
	for {
		for len(q.waiting) > 0 && len(batch) < limit {
			u := q.waiting[0]
			q.waiting[0] = nil
			q.waiting = q.waiting[1:]
			if u.taken.CompareAndSwap(false, true) {
				batch = append(batch, u)
			}
		}
		if len(batch) > 0 || q.closed && len(q.waiting) == 0 {
			return batch
		}
		if len(q.waiting) == 0 {
			q.some.Wait()
		}
	}
}
