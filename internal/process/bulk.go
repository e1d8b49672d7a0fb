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
