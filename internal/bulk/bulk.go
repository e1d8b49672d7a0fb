// Package bulk keeps the collector from taking most of the time of a transfer:
// much is moved through little memory, and every piece of it is garbage at once.
package bulk

import (
	"runtime/debug"
	"sync"
)

const (
	// least is how much is moved until it counts, in bytes.
	least = 4 << 20
	// percent is the garbage that may pile up meanwhile, in percent of the live
	// heap, and of the 4 MiB that the runtime takes for the least.
	percent = 200
)

// Heap lets garbage pile up while much is moved by this process, and gives it back
// afterwards.
type Heap struct {
	// mu guards the fields below, over the calls of the runtime on purpose: they
	// have to come in the order of the counting.
	mu    sync.Mutex
	users int
	quiet int
}

func (h *Heap) enter() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users++; h.users == 1 {
		h.quiet = debug.SetGCPercent(percent)
	}
}

func (h *Heap) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users == 0 {
		debug.SetGCPercent(h.quiet)
		debug.FreeOSMemory()
	}
}

// Meter counts what one transfer moves. It may be used by one goroutine at a time.
type Meter struct {
	heap  *Heap
	moved int64
}

// NewMeter makes a meter. Close it when the transfer is over.
func NewMeter(h *Heap) *Meter { return &Meter{heap: h} }

// Add counts bytes.
func (m *Meter) Add(n int) {
	before := m.moved
	if m.moved += int64(n); before < least && m.moved >= least {
		m.heap.enter()
	}
}

// Close ends the counting.
func (m *Meter) Close() {
	if m.moved >= least {
		m.heap.leave()
	}
	m.moved = 0
}
