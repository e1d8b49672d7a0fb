package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Touched returns the ids of the sandboxes that have new events since the call before; at first,
// of all that are stored. Only retention calls it.
func (l *Ledger) Touched() map[string]struct{} { return l.sandboxes.takeTouched() }

// TouchedAgents is Touched for agents.
func (l *Ledger) TouchedAgents() map[string]struct{} { return l.agents.takeTouched() }

// History reads what retention needs to know about a sandbox's events, page by page, and
// which execs have a record. It skips an event that cannot be read; such an event is
// never removed alone.
func (l *Ledger) History(ctx context.Context, sandboxID string) (h *machine.History, recorded map[string]bool, err error) {
	h = new(machine.History)
	for page := (store.Page[*agboxv1.SandboxEvent]{More: true}); page.More; {
		if page, err = l.Events(ctx, sandboxID, page.Next, loadPage); err != nil {
			return nil, nil, err
		}
		for _, ev := range page.Records {
			h.Take(ev)
		}
	}
	recorded, err = l.RecordedExecs(ctx, sandboxID)
	return h, recorded, err
}

// RecordedExecs returns the ids of all execs of a sandbox that have a record, running or
// not.
func (l *Ledger) RecordedExecs(ctx context.Context, sandboxID string) (map[string]bool, error) {
	recorded := make(map[string]bool)
	for after, more := "", true; more; {
		ids, err := look(ctx, l, func(tx *store.Tx) []string { return tx.ExecIDs(sandboxID, after, loadPage) })
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			recorded[id] = true
			after = id
		}
		more = len(ids) == loadPage
	}
	return recorded, nil
}

// Forget removes parts of a sandbox's history in one transaction, so callers should pass
// only a few at a time. Data of a running exec is never removed.
func (l *Ledger) Forget(ctx context.Context, sandboxID string, parts []machine.TrimPart) error {
	var execIDs []string
	err := l.store.Update(ctx, func(tx *store.Tx) error {
		execIDs = nil
		var sequences []uint64
		for _, part := range parts {
			if part.ExecID != "" && l.isRunning(part.ExecID) {
				continue
			}
			if part.ExecID != "" {
				execIDs = append(execIDs, part.ExecID)
			}
			sequences = append(sequences, part.Events...)
		}
		return errors.Join(tx.ForgetExecs(sandboxID, execIDs...), tx.RemoveEvents(sandboxID, sequences...))
	})
	if err == nil {
		l.agents.forgetJournals(execIDs)
	}
	return err
}

func (l *Ledger) isRunning(execID string) bool {
	l.sandboxes.mu.RLock()
	defer l.sandboxes.mu.RUnlock()
	_, running := l.sandboxes.running[execID]
	return running
}

// Drop removes everything about a deleted sandbox except its ids. It does nothing to one
// that is not deleted.
func (l *Ledger) Drop(ctx context.Context, id string) error {
	if _, deleted, err := l.DeletedAt(ctx, id); err != nil || !deleted {
		return err
	}
	defer l.past.drop(id)
	err := l.store.Update(ctx, func(tx *store.Tx) error { return tx.DropSandbox(id) })
	if err == nil {
		l.dropped(id)
	}
	return err
}

// TrimAgent removes events of an agent that its record does not need, except for the newest keep
// and those since a time, a few in each transaction. It returns how many are left. An
// event that cannot be read stays, and keeps no other one from being removed.
func (l *Ledger) TrimAgent(ctx context.Context, id string, keep int, since time.Time) (left int, err error) {
	events, err := l.allOfAgent(ctx, id)
	if err != nil {
		return 0, err
	}
	left = len(events)
	for _, part := range agents.Trim(events, keep, since) {
		if err := l.store.Update(ctx, func(tx *store.Tx) error { return tx.RemoveAgentEvents(id, part...) }); err != nil {
			return left, err
		}
		left -= len(part)
	}
	return left, nil
}

// DropAgent removes everything about a deleted agent except its id. It does nothing to one
// that is not deleted.
func (l *Ledger) DropAgent(ctx context.Context, id string) error {
	a, err := l.PastAgent(ctx, id)
	if err != nil || !a.Deleted {
		return err
	}
	if err := l.store.Update(ctx, func(tx *store.Tx) error { return tx.DropAgent(id) }); err != nil {
		return err
	}
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	delete(l.agents.touched, id)
	l.agents.offspring.remove(a.Origin, id)
	return nil
}

// Surplus returns the deleted sandboxes that agents had asked for from inside but for the newest
// of each tree. The bound of a tree counts only sandboxes that exist, so a program can have made
// and left any number, each with logs.
func (l *Ledger) Surplus() map[string]bool {
	b := &l.sandboxes
	b.mu.RLock()
	defer b.mu.RUnlock()
	surplus := make(map[string]bool)
	for tree := range b.crowded[all] {
		ids := b.gone[tree]
		oldest := slices.SortedFunc(maps.Keys(ids), func(x, y string) int { return b.goneAt[x].at.Compare(b.goneAt[y].at) })
		for _, id := range oldest[:len(oldest)-KeptOfTree] {
			surplus[id] = true
		}
	}
	return surplus
}

// dropped forgets a deleted sandbox.
func (l *Ledger) dropped(id string) {
	b := &l.sandboxes
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.touched, id)
	if g, known := b.goneAt[id]; known {
		b.gone.remove(g.tree, id)
		delete(b.goneAt, id)
		b.crowdLocked(g.tree)
	}
}
