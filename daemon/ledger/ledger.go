// Package ledger combines the store with the rules. It appends events, keeps the records
// that are folded from them in memory, and wakes callers that wait for a change.
//
// Whether an event may be appended is decided inside the write transaction, with the
// record at that point of the write order. So two conflicting calls never both succeed,
// and every reply describes data that is on disk.
//
// It is a package of its own because loop, API and execs all need the records.
//
// Its files use one another in one direction. At the bottom is what is in memory: book.go,
// agentindex.go, agentbook.go and inboxes.go, and ledger.go, which has them. txn.go and
// agenttxn.go change one sandbox or agent within a transaction; agentmail.go, agentpost.go,
// agentkin.go, leasequeue.go and breakers.go are what follows from a change of an agent, and
// agentupdate.go puts both together. Above are the requests, a file for each noun, and open.go,
// which loads all.
package ledger

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/agents/lease"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Ledger has the records of all sandboxes and is the only writer of the store.
type Ledger struct {
	store *store.Store
	now   func() time.Time
	log   *slog.Logger
	// unreadable says why sandboxes were left out. It is not modified after Open.
	unreadable map[string]error

	// sandboxes has every sandbox that is not DELETED, with a lock of its own.
	sandboxes sandboxBook
	// agents has the agents, with a lock of its own.
	agents agentBook
	// mail has the inboxes of agents, with a lock of its own.
	mail mailroom
	// execs says where ended execs were, with a lock of its own.
	execs execIndex
	// past has deleted sandboxes, with a lock of its own.
	past pastBook
	// pools has what is made ahead, with a lock of its own.
	pools poolBook
	// leases has what agents hold and ask for. Only the goroutine that writes uses it.
	leases leaseBook
}

// leaseBook has what all agents hold and ask for, as a batch has it so far. Only the goroutine
// that writes uses it.
type leaseBook struct {
	book *lease.Book
	// open means that there are changes that are not committed.
	open bool
}

// Pool is a template of sandboxes that are made ahead.
type Pool struct {
	Name string
	// ID names the key of its secrets, and changes with its spec.
	ID string
	// Spec is what is made ahead, with a placeholder for each secret value; see PoolSpec.
	Spec *agboxv1.CreateSpec
	// Size is how many are kept ready.
	Size      int
	CreatedAt time.Time
	// Hits is how many requests that fit have got one, and Misses how many had to wait for a new sandbox.
	Hits, Misses uint64
	// UsedAt is when the last of these came, or else when the pool was made.
	UsedAt time.Time
	// MadeBy says which daemon makes its sandboxes; see RenewPools.
	MadeBy string
	// Configured means that it is set in the daemon's configuration.
	Configured bool
}

// poolBook has all pools by name.
type poolBook struct {
	mu  sync.Mutex // guards all
	all map[string]Pool
	// madeBy is that of pools from now on.
	madeBy string
}

// view returns what fn reads in one read transaction.
func view[T any](ctx context.Context, l *Ledger, fn func(*store.Tx) (T, error)) (result T, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) (err error) {
		result, err = fn(tx)
		return err
	})
	return result, err
}

// look is view for what does not fail.
func look[T any](ctx context.Context, l *Ledger, fn func(*store.Tx) T) (T, error) {
	return view(ctx, l, func(tx *store.Tx) (T, error) { return fn(tx), nil })
}

// Sandbox returns a living sandbox.
func (l *Ledger) Sandbox(id string) (Sandbox, bool) { return l.sandboxes.get(id) }

// Owned returns the living sandboxes that somebody has, and those that are removed, oldest first.
func (l *Ledger) Owned() []Sandbox { return slices.DeleteFunc(l.Sandboxes(), Sandbox.hidden) }

// Sandboxes returns all living sandboxes, also those that were made ahead, oldest first.
func (l *Ledger) Sandboxes() []Sandbox {
	all := l.sandboxes.list()
	slices.SortFunc(all, func(a, b Sandbox) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// Changed returns a channel that the next commit about the sandbox closes; an empty id
// means any sandbox. Call it before reading the record, or a change in between is missed.
// It returns nil for a sandbox that is deleted or unknown, because no commit would close
// the channel and remove it from memory.
func (l *Ledger) Changed(sandboxID string) <-chan struct{} {
	b := &l.sandboxes
	b.mu.Lock()
	defer b.mu.Unlock()
	_, waiting := b.changed[sandboxID]
	if _, living := b.all[sandboxID]; !waiting && !living && sandboxID != "" {
		return nil
	}
	return b.changed.on(sandboxID)
}

// publish makes a committed change visible and wakes the callers that wait for it. The
// store calls it in commit order, before the change is acknowledged.
func (l *Ledger) publish(sb Sandbox, events []*agboxv1.SandboxEvent) {
	b := &l.sandboxes
	b.mu.Lock()
	defer b.mu.Unlock()
	b.putLocked(sb)
	for _, ev := range events {
		switch ev.GetEventType() {
		case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
			id := ev.GetExec().GetExecId()
			if r, known := b.running[id]; known {
				l.execs.put(id, r.sandboxID)
				delete(b.running, id)
				close(r.done)
			}
		}
	}
	b.changed.wake(sb.ID, "")
}

// pastBook keeps deleted sandboxes whose history is long, because to fold it again for each list
// and each read costs milliseconds. Their records do not change any more. A short history is
// read in less than 0.1 ms and not kept.
type pastBook struct {
	mu   sync.Mutex // guards the fields below
	kept map[string]Sandbox
	// dropped counts the sandboxes that were removed for good, so that a reader of before keeps
	// nothing of one.
	dropped uint64

	// folded counts the events that were read to make records. Tests bound it.
	folded atomic.Uint64
}

const (
	// longHistory is the number of events from which on a deleted sandbox is kept.
	longHistory = 64
	// maxPast bounds how many are kept, of a few KB each.
	maxPast = 1024
)

func (b *pastBook) get(id string) (sb Sandbox, kept bool, dropped uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sb, kept = b.kept[id]
	return sb, kept, b.dropped
}

// put keeps a sandbox that was read when so many had been dropped.
func (b *pastBook) put(sb Sandbox, dropped uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !sb.Over() || sb.LastSequence < longHistory || dropped != b.dropped {
		return
	}
	for id := range b.kept {
		if len(b.kept) < maxPast {
			break
		}
		delete(b.kept, id) // any: each costs the same
	}
	if b.kept == nil {
		b.kept = make(map[string]Sandbox)
	}
	b.kept[sb.ID] = sb
}

func (b *pastBook) drop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.kept, id)
	b.dropped++
}

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
