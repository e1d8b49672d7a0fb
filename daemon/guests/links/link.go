package links

import (
	"sync"
	"sync/atomic"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime/guest"
)

// Link is one linked supervisor.
type Link struct {
	SandboxID string
	Conn      *guest.Conn
	// Boot is the boot configuration of the supervisor, with the default user and
	// directory of execs.
	Boot *guestv1.BootConfig
	// Made is when the connection was made.
	Made time.Time
	// MainDecided is set once the ledger has decided, over this link, about the record of
	// the container's own command.
	MainDecided atomic.Bool
	// LostSought is set once all execs were looked for, over this link, that were recorded as lost.
	LostSought atomic.Bool

	logs logFolder
	// asked are the execs that the link queries first.
	asked map[string]machine.Exec

	mu sync.Mutex // guards missed
	// missed are the execs for which Miss has returned true.
	missed map[string]struct{}
}

// Miss reports whether the supervisor has not yet denied, over this link, that it knows
// the exec. A supervisor in order does so once; one that repeats it costs nothing. Call
// it only for execs that are recorded as running, of which the sandbox has few.
func (lk *Link) Miss(execID string) bool {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	if _, again := lk.missed[execID]; again {
		return false
	}
	if lk.missed == nil {
		lk.missed = make(map[string]struct{})
	}
	lk.missed[execID] = struct{}{}
	return true
}

// Asked reports whether the link queried the exec when it was made.
func (lk *Link) Asked(execID string) bool {
	_, asked := lk.asked[execID]
	return asked
}

// Break ends the link. The loop makes the next one.
func (lk *Link) Break() { _ = lk.Conn.Close() }
