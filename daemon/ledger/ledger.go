// Package ledger combines the store with the rules. It appends events, keeps the records
// that are folded from them in memory, and wakes callers that wait for a change.
//
// Whether an event may be appended is decided inside the write transaction, with the
// record at that point of the write order. So two conflicting calls never both succeed,
// and every reply describes data that is on disk.
//
// It is a package of its own because loop, API and execs all need the records.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/store"
)

// Ledger has the records of all sandboxes and is the only writer of the store.
type Ledger struct {
	store *store.Store
	now   func() time.Time
	log   *slog.Logger
	// unreadable says why sandboxes were left out. It is not modified after Open.
	unreadable map[string]error

	// mu guards the maps below. It is held only for map operations, never for I/O.
	mu sync.RWMutex
	// sandboxes has every sandbox that is not DELETED.
	sandboxes map[string]Sandbox
	// byTree has those that agents have asked for from inside, by the trees of these agents.
	byTree agentSets
	// gone has the deleted ones whose records are kept, by tree, and goneAt when that was.
	gone   agentSets
	goneAt map[string]goneSandbox
	// crowded has under the key all the trees of which more than KeptOfTree are gone.
	crowded agentSets
	// touched has the sandboxes with events that retention has not looked at.
	touched map[string]struct{}
	// names maps the names of living sandboxes to their ids.
	names map[string]string
	// running maps running execs to their sandboxes.
	running map[string]runningExec
	// changed has a channel for each sandbox that somebody waits for. The next commit
	// closes it. The key "" is for any sandbox.
	changed map[string]chan struct{}

	// agents has the agents, with a lock of its own.
	agents agentBook
	// mail has the inboxes of agents, with a lock of its own.
	mail mailroom
	// execs says where ended execs were, with a lock of its own.
	execs execIndex
	// past has deleted sandboxes, with a lock of its own.
	past pastBook
	// leases has what agents hold and ask for. Only the goroutine that writes uses it.
	leases leaseBook
}

// Sandbox is a record with the spec of the sandbox. Both are read-only.
type Sandbox struct {
	machine.Record
	// Spec has a placeholder for each secret value; see Reveal.
	Spec *agboxv1.CreateSpec
	// Inherited is the newest sequence that an earlier daemon wrote. It is 0 if the
	// sandbox was created by this daemon.
	Inherited uint64
}

type runningExec struct {
	sandboxID string
	// done is closed once the end of the exec is committed.
	done chan struct{}
}

// Open loads all living sandboxes. A sandbox whose record cannot be read is logged and
// left out, and the others are still loaded.
func Open(ctx context.Context, s *store.Store, now func() time.Time, log *slog.Logger) (*Ledger, error) {
	l := &Ledger{
		store:      s,
		now:        now,
		log:        log,
		unreadable: make(map[string]error),
		sandboxes:  make(map[string]Sandbox),
		byTree:     make(agentSets),
		gone:       make(agentSets),
		goneAt:     make(map[string]goneSandbox),
		crowded:    make(agentSets),
		touched:    make(map[string]struct{}),
		names:      make(map[string]string),
		running:    make(map[string]runningExec),
		changed:    make(map[string]chan struct{}),
	}
	var ids []string
	err := s.View(ctx, func(tx *store.Tx) error {
		ids = tx.SandboxIDs()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, id := range ids {
		l.touched[id] = struct{}{}
		sb, err := l.load(ctx, id)
		switch {
		case errors.Is(err, context.Canceled):
			return nil, err
		case err != nil:
			log.Error("a sandbox record cannot be read and is left out; \"agbox doctor\" tells more", "sandbox_id", id, "error", err)
			l.unreadable[id] = err
		case !sb.Over() && sb.Exists():
			sb.Inherited = sb.LastSequence
			l.admit(sb)
		case sb.Over():
			l.growTreeLocked(sb) // nobody else uses the ledger yet
		}
	}
	return l, l.openAgents(ctx)
}

// loadPage is the maximum number of events in one read transaction while loading.
const loadPage = 512

// load folds one sandbox from the store.
func (l *Ledger) load(ctx context.Context, id string) (Sandbox, error) {
	var sb Sandbox
	var history machine.Folding
	err := l.store.View(ctx, func(tx *store.Tx) (err error) {
		sb.Spec, err = tx.SandboxConfig(id)
		return err
	})
	if err != nil {
		return sb, err
	}
	for page := (store.EventPage{More: true}); page.More; {
		if page, err = l.Events(ctx, id, page.Next, loadPage); err != nil {
			return sb, err
		}
		if len(page.Bad) > 0 {
			return sb, page.Bad[0] // without one of its events the state would be a guess
		}
		l.past.folded.Add(uint64(len(page.Events)))
		for _, ev := range page.Events {
			history.Add(ev)
		}
	}
	sb.Record = history.Record()
	return sb, nil
}

// admit adds a sandbox to the maps. Only Open and publish call it.
func (l *Ledger) admit(sb Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitLocked(sb)
}

func (l *Ledger) admitLocked(sb Sandbox) {
	l.touched[sb.ID] = struct{}{}
	l.growTreeLocked(sb)
	if sb.Over() {
		delete(l.sandboxes, sb.ID)
		if l.names[sb.Name] == sb.ID {
			delete(l.names, sb.Name)
		}
	} else {
		if was := l.sandboxes[sb.ID].Name; was != sb.Name && l.names[was] == sb.ID {
			delete(l.names, was)
		}
		l.sandboxes[sb.ID] = sb
		// One that is being removed may have been replaced by another one with its name.
		if sb.Name != "" && (l.names[sb.Name] == "" || sb.Want != machine.WantDeleted) {
			l.names[sb.Name] = sb.ID
		}
	}
	for id := range sb.Execs {
		if _, known := l.running[id]; !known {
			l.running[id] = runningExec{sandboxID: sb.ID, done: make(chan struct{})}
		}
	}
}

// publish makes a committed change visible and wakes the callers that wait for it. The
// store calls it in commit order, before the change is acknowledged.
func (l *Ledger) publish(sb Sandbox, events []*agboxv1.SandboxEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitLocked(sb)
	for _, ev := range events {
		switch ev.GetEventType() {
		case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
			id := ev.GetExec().GetExecId()
			if r, known := l.running[id]; known {
				l.execs.put(id, r.sandboxID)
				delete(l.running, id)
				close(r.done)
			}
		}
	}
	for _, key := range [...]string{sb.ID, ""} {
		if ch, waiting := l.changed[key]; waiting {
			delete(l.changed, key)
			close(ch)
		}
	}
}

// Sandbox returns a living sandbox.
func (l *Ledger) Sandbox(id string) (Sandbox, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	sb, ok := l.sandboxes[id]
	return sb, ok
}

// Sandboxes returns all living sandboxes, oldest first.
func (l *Ledger) Sandboxes() []Sandbox {
	l.mu.RLock()
	all := make([]Sandbox, 0, len(l.sandboxes))
	for _, sb := range l.sandboxes {
		all = append(all, sb)
	}
	l.mu.RUnlock()
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
	l.mu.Lock()
	defer l.mu.Unlock()
	ch, ok := l.changed[sandboxID]
	if _, living := l.sandboxes[sandboxID]; !ok && !living && sandboxID != "" {
		return nil
	}
	if !ok {
		ch = make(chan struct{})
		l.changed[sandboxID] = ch
	}
	return ch
}
