package server

import (
	"context"
	"sync"
	"time"
)

// flushWithin is how long the connections get to take what was written to them
// once no unary call is under way. A client that does not read, such as a
// pager's, would keep its connection for ever; it comes back with its cursor.
const flushWithin = 250 * time.Millisecond

// inFlight counts the unary calls under way.
type inFlight struct {
	// mu guards what follows.
	mu sync.Mutex
	n  int
	// begun counts all calls there have been.
	begun uint64
	// idle is closed when no call is under way; nil while nobody waits for that.
	idle chan struct{}
}

func (f *inFlight) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	f.begun++
}

// since returns how many calls there have been.
func (f *inFlight) since() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begun
}

func (f *inFlight) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n--
	f.closeQuietLocked()
}

func (f *inFlight) closeQuietLocked() {
	if f.n == 0 && f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}

// quiet returns a channel that is closed once there is a moment without a call.
// One goroutine may wait at a time.
func (f *inFlight) quiet() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	idle := make(chan struct{})
	f.idle = idle
	f.closeQuietLocked()
	return idle
}

// await returns when done is closed, or earlier, when no more answers can be expected
// to leave: there was no unary call for flushWithin, or ctx ended.
func (f *inFlight) await(ctx context.Context, done <-chan struct{}) {
	flushed := time.NewTimer(flushWithin)
	defer flushed.Stop()
	for known := f.since(); ; known = f.since() {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-f.quiet():
		}
		flushed.Reset(flushWithin)
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-flushed.C:
		}
		if f.since() == known {
			return
		}
	}
}
