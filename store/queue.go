package store

import (
	"sync"
	"sync/atomic"
)

// update is one call of Update that the writer has not finished.
type update struct {
	fn func(*Tx) error
	// taken is set once: by the writer when it dequeues the update, or by the
	// caller when it cancels it.
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
	// mu guards waiting and closed; changed signals a change of either.
	mu      sync.Mutex
	changed *sync.Cond
	waiting []*update
	closed  bool
}

func (q *queue) init() { q.changed = sync.NewCond(&q.mu) }

// add returns false if the queue is closed.
func (q *queue) add(u *update) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, u)
	q.changed.Signal()
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// take appends waiting updates to first, up to limit in all. If first is empty,
// it waits for an update; it returns none only when the queue is closed and empty.
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
			q.changed.Wait()
		}
	}
}
