package server

import (
	"context"
	"sync"
	"time"
)

// flushWithin is how long the connections get to send pending data once no unary call is
// running. A client that does not read, such as one behind a pager, would keep its
// connection forever. It continues later with its cursor.
const flushWithin = 250 * time.Millisecond

// inFlight counts the running unary calls.
type inFlight struct {
	// mu guards what follows.
	mu sync.Mutex
	n  int
	// begun counts all calls so far.
	begun uint64
	// idle is closed when no call is running. It is nil if nobody waits for that.
	idle chan struct{}
}

func (f *inFlight) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	f.begun++
}

// since returns the number of calls so far.
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

// quiet returns a channel that is closed once no call is running. Only one goroutine may
// wait at a time.
func (f *inFlight) quiet() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	idle := make(chan struct{})
	f.idle = idle
	f.closeQuietLocked()
	return idle
}

// await returns when done is closed, or earlier if no more answers can be expected: no
// unary call has run for flushWithin, or ctx ended.
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
