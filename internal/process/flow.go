package process

import (
	"sync"
	"time"
)

const (
	// bigCall is the size in bytes from which a call counts as bulk.
	bigCall = 64 << 10
	// quiet is how long no big call may come before the flow is over.
	quiet = 2 * time.Second
)

// BulkFlow raises the collector's target while big calls come one after the other. The
// zero value is ready. Any number of goroutines may use it.
type BulkFlow struct {
	// mu guards the fields below.
	mu   sync.Mutex
	last time.Time
	// timer runs while the target is raised; nil otherwise.
	timer *time.Timer
}

// Add notes a call of n bytes.
func (f *BulkFlow) Add(n int) {
	if n < bigCall {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = time.Now()
	if f.timer == nil {
		raiseTarget()
		f.timer = time.AfterFunc(quiet, f.check)
	}
}

// check ends the flow unless a big call came lately.
func (f *BulkFlow) check() {
	f.mu.Lock()
	if left := quiet - time.Since(f.last); left > 0 {
		f.timer.Reset(left)
		f.mu.Unlock()
		return
	}
	f.timer = nil
	f.mu.Unlock()
	lowerTarget()
}
