// Package ledger joins the store with the rules: it appends events, keeps the
// records that are folded from them in memory, and tells who waits for a change.
//
// Every decision about what may be appended is taken inside the write
// transaction, against the record as it is at that point of the order. So two
// callers never both win, and a reply is only given for what is on disk.
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

// Ledger is the daemon's memory of sandboxes and the only writer of the store.
type Ledger struct {
	store *store.Store
	now   func() time.Time
	log   *slog.Logger
	// unreadable holds why sandboxes were left out; not changed after Open.
	unreadable map[string]error

	// mu guards the maps below. It is held for map work only, never for I/O.
	mu sync.RWMutex
	// sandboxes holds every sandbox that is not DELETED.
	sandboxes map[string]Sandbox
	// names maps the names of living sandboxes to their ids.
	names map[string]string
	// running maps running execs to where they run.
	running map[string]runningExec
	// changed holds, for each sandbox that somebody waits for, a channel that
	// the next commit closes; under "" the one for any sandbox.
	changed map[string]chan struct{}
	// published is the position of the newest event that the maps above know. The
	// store shows an event a moment earlier, even before it is safe on the disk.
	published uint64
}

// Sandbox is a record with the spec it was created from. Both are read-only.
type Sandbox struct {
	machine.Record
	Spec *agboxv1.CreateSpec
	// Inherited is the newest sequence that an earlier daemon wrote; 0 when the
	// sandbox was created under this one.
	Inherited uint64
}

type runningExec struct {
	sandboxID string
	// done is closed when the exec has ended and that is committed.
	done chan struct{}
}

// Open loads all living sandboxes. A sandbox whose record cannot be read is
// logged and left out; it does not keep the others from loading.
func Open(ctx context.Context, s *store.Store, now func() time.Time, log *slog.Logger) (*Ledger, error) {
	l := &Ledger{
		store:      s,
		now:        now,
		log:        log,
		unreadable: make(map[string]error),
		sandboxes:  make(map[string]Sandbox),
		names:      make(map[string]string),
		running:    make(map[string]runningExec),
		changed:    make(map[string]chan struct{}),
	}
	var ids []string
	err := s.View(ctx, func(tx *store.Tx) error {
		ids, l.published = tx.SandboxIDs(), tx.LastPosition()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, id := range ids {
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
		}
	}
	return l, nil
}

// loadPage is how many events one read transaction takes while loading.
const loadPage = 512

// load folds one sandbox from the store.
func (l *Ledger) load(ctx context.Context, id string) (Sandbox, error) {
	var sb Sandbox
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
			return sb, page.Bad[0] // without one of its events the state is a guess
		}
		for _, ev := range page.Events {
			sb.Record = machine.Fold(sb.Record, ev)
		}
	}
	return sb, nil
}

// admit takes a sandbox into memory. Only Open and publish call it.
func (l *Ledger) admit(sb Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitLocked(sb)
}

func (l *Ledger) admitLocked(sb Sandbox) {
	if sb.Over() {
		delete(l.sandboxes, sb.ID)
		if l.names[sb.Name] == sb.ID {
			delete(l.names, sb.Name)
		}
	} else {
		l.sandboxes[sb.ID] = sb
		if sb.Name != "" {
			l.names[sb.Name] = sb.ID
		}
	}
	for id := range sb.Execs {
		if _, known := l.running[id]; !known {
			l.running[id] = runningExec{sandboxID: sb.ID, done: make(chan struct{})}
		}
	}
}

// publish makes a committed change visible and wakes who waits for it. The
// store calls it in commit order, before the change is acknowledged.
func (l *Ledger) publish(sb Sandbox, events []*agboxv1.SandboxEvent, position uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published = max(l.published, position)
	l.admitLocked(sb)
	for _, ev := range events {
		switch ev.GetEventType() {
		case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
			id := ev.GetExec().GetExecId()
			if r, known := l.running[id]; known {
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

// Changed returns a channel that the next commit about the sandbox closes; with
// an empty id, the next commit about any. Take it before you look, or you may
// miss the change that you wait for. It is nil for a sandbox that is deleted or
// unknown: no commit would close it and remove it from memory.
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
