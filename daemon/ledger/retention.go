package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/store"
)

// Touched returns the ids of the sandboxes that have new events since the call before; at first,
// of all that are stored. Only retention calls it.
func (l *Ledger) Touched() map[string]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	touched := l.touched
	l.touched = make(map[string]struct{})
	return touched
}

// TouchedAgents is Touched for agents.
func (l *Ledger) TouchedAgents() map[string]struct{} {
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	touched := l.agents.touched
	l.agents.touched = make(map[string]struct{})
	return touched
}

// History reads what retention needs to know about a sandbox's events, page by page, and
// which execs have a record. It skips an event that cannot be read; such an event is
// never removed alone.
func (l *Ledger) History(ctx context.Context, sandboxID string) (h *machine.History, recorded map[string]bool, err error) {
	h = new(machine.History)
	for page := (store.EventPage{More: true}); page.More; {
		if page, err = l.Events(ctx, sandboxID, page.Next, loadPage); err != nil {
			return nil, nil, err
		}
		for _, ev := range page.Events {
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
		var ids []string
		err := l.store.View(ctx, func(tx *store.Tx) error {
			ids = tx.ExecIDs(sandboxID, after, loadPage)
			return nil
		})
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
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, running := l.running[execID]
	return running
}

// DeletedAt returns when a sandbox that is not in memory was deleted. deleted is false if
// that is not certain; its data must be kept then.
func (l *Ledger) DeletedAt(ctx context.Context, id string) (at time.Time, deleted bool, err error) {
	sb, err := l.Past(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return time.Time{}, false, nil
	case err != nil || !sb.Over():
		return time.Time{}, false, err
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		at, _ = tx.DeletedAt(id)
		return nil
	})
	if at.IsZero() {
		at = sb.StateChangedAt
	}
	return at, true, err
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

// Owns reports whether an engine object with this sandbox id and nonce belongs to a
// sandbox that may still need it. A sandbox whose record cannot be read may.
func (l *Ledger) Owns(ctx context.Context, id, nonce string) (bool, error) {
	if sb, living := l.Sandbox(id); living {
		return sb.Nonce == nonce, nil
	}
	sb, err := l.Past(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return false, nil
	case err != nil:
		return true, err
	}
	return !sb.Over(), nil
}

// TrimAgent removes events of an agent that its record does not need, except for the newest keep
// and those since a time, a few in each transaction. It returns how many are left. An
// event that cannot be read stays, and keeps no other one from being removed.
func (l *Ledger) TrimAgent(ctx context.Context, id string, keep int, since time.Time) (left int, err error) {
	var events []*agboxv1.AgentEvent
	for page := (store.AgentPage{More: true}); page.More; {
		err := l.store.View(ctx, func(tx *store.Tx) error {
			page = tx.AgentEvents(id, page.Next, loadPage)
			return nil
		})
		if err != nil {
			return 0, err
		}
		events = append(events, page.Events...)
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

// AgentIDUsed reports whether the id was ever given to an agent.
func (l *Ledger) AgentIDUsed(ctx context.Context, id string) (used bool, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		used = tx.AgentReserved(id)
		return nil
	})
	return used, err
}

// PastAgent reads the record of an agent, deleted or not. Of a deleted one, what cannot be read
// is passed over; one that ended at an unknown time counts as ended when it was deleted.
func (l *Ledger) PastAgent(ctx context.Context, id string) (a Agent, err error) {
	a, err = l.loadAgent(ctx, id)
	if damaged := new(store.RecordError); !errors.As(err, &damaged) {
		return a, err
	}
	var r agents.Record
	for page := (store.AgentPage{More: true}); page.More; {
		failed := l.store.View(ctx, func(tx *store.Tx) error {
			page = tx.AgentEvents(id, page.Next, loadPage)
			return nil
		})
		if failed != nil {
			return a, failed
		}
		for _, ev := range page.Events {
			if r = agents.Fold(r, ev); r.Deleted && r.EndedAt.IsZero() {
				r.EndedAt = ev.GetOccurredAt().AsTime()
			}
		}
	}
	if !r.Deleted {
		return a, err
	}
	return Agent{Record: r, Spec: a.Spec}, nil
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
