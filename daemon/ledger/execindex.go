package ledger

import (
	"sync"
	"sync/atomic"
)

// execIndex remembers in which sandboxes execs were, because a search looks at all sandboxes
// whose records are kept, also deleted ones. What it says must be checked: records may go.
type execIndex struct {
	mu sync.Mutex // guards the fields below
	// newer and older have sandboxes by exec. When newer is full it becomes older.
	newer, older map[string]string

	// searches counts the searches of all sandboxes. Tests bound it.
	searches atomic.Uint64
}

// maxExecIndex bounds how many execs each of the two maps has, of about 100 bytes.
const maxExecIndex = 8192

func (x *execIndex) sandboxOf(execID string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, known := x.newer[execID]; known {
		return id
	}
	return x.older[execID]
}

func (x *execIndex) put(execID, sandboxID string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.newer == nil || len(x.newer) >= maxExecIndex {
		x.newer, x.older = make(map[string]string), x.newer
	}
	x.newer[execID] = sandboxID
}
