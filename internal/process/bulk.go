// This file lets garbage pile up while this process moves much data through
// little memory. Every piece of the data is garbage at once, and the collector would
// otherwise take about half of the time.
//
// The collector's target is one setting of the whole process, so the package alone
// changes it and counts who needs the change. The process sets its usual target with
// debug.SetGCPercent before it uses the package, and not again.

package process

import (
	"runtime/debug"
	"sync"
	"time"
)

// BulkPercent is the target while data is moved: the garbage that may pile up, in percent
// of the live heap or of the 4 MiB that the runtime takes as the minimum.
const BulkPercent = 200

// heap is the collector of this process.
var heap struct {
	// mu guards the fields below. It is held across the changes of the target, so that
	// they happen in the order of the count.
	mu    sync.Mutex
	users int
	// usualPercent is the target to go back to; meaningful while there are users.
	usual int
}

// raiseTarget raises the target until the caller calls lower.
func raiseTarget() {
	heap.mu.Lock()
	defer heap.mu.Unlock()
	if heap.users++; heap.users == 1 {
		heap.usual = debug.SetGCPercent(BulkPercent)
	}
}

// lowerTarget undoes one raise. The last one returns the memory to the system.
func lowerTarget() {
	heap.mu.Lock()
	heap.users--
	last := heap.users == 0
	if last {
		debug.SetGCPercent(heap.usual)
	}
	heap.mu.Unlock()
	if last {
		debug.FreeOSMemory()
	}
}

// leastBulk is how many bytes a transfer moves before it counts as bulk.
const leastBulk = 4 << 20

// BulkMeter counts the bytes of one transfer and raises the collector's target once they
// are many. The zero value is ready. One goroutine may use it at a time.
type BulkMeter struct{ moved int64 }

// Add counts n bytes.
func (m *BulkMeter) Add(n int) {
	before := m.moved
	if m.moved += int64(n); before < leastBulk && m.moved >= leastBulk {
		raiseTarget()
	}
}

// Close ends the count. Call it when the transfer is over.
func (m *BulkMeter) Close() {
	if m.moved >= leastBulk {
		lowerTarget()
	}
	m.moved = 0
}

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
