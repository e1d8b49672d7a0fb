package supervisor

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// flowGCPercent lets the heap grow by some 8 MB between collections while much
	// input flows; half of the time would be spent collecting otherwise.
	flowGCPercent = 200
	// flowEnd is how long nothing must have come for the heap to be small again.
	flowEnd = 2 * time.Second
	// bigCall is the size of a call, in bytes, that counts as a flow.
	bigCall = 64 << 10
)

// heapRoom gives the supervisor more memory while big calls come.
type heapRoom struct {
	// mu guards the fields below. It is held across the change of the collector's
	// goal because it is there for the order of these changes.
	mu   sync.Mutex
	last time.Time
	// usual is the goal to go back to; meaningful while timer is set.
	usual int
	timer *time.Timer
}

// flow notes a call of so many bytes.
func (h *heapRoom) flow(size int) {
	if size < bigCall {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = time.Now()
	if h.timer == nil {
		h.usual = debug.SetGCPercent(flowGCPercent)
		h.timer = time.AfterFunc(flowEnd, h.ebb)
	}
}

// ebb goes back to the usual goal unless something came lately.
func (h *heapRoom) ebb() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer == nil {
		return
	}
	if left := flowEnd - time.Since(h.last); left > 0 {
		h.timer.Reset(left)
		return
	}
	debug.SetGCPercent(h.usual)
	h.timer = nil
}
