package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// load folds one sandbox from the store.
func (l *Ledger) load(ctx context.Context, id string) (Sandbox, error) {
	var history machine.Folding
	spec, err := view(ctx, l, func(tx *store.Tx) (*agboxv1.CreateSpec, error) { return tx.SandboxConfig(id) })
	sb := Sandbox{Spec: spec}
	if err != nil {
		return sb, err
	}
	for page := (store.Page[*agboxv1.SandboxEvent]{More: true}); page.More; {
		if page, err = l.Events(ctx, id, page.Next, loadPage); err != nil {
			return sb, err
		}
		if len(page.Bad) > 0 {
			return sb, page.Bad[0] // without one of its events the state would be a guess
		}
		l.past.folded.Add(uint64(len(page.Records)))
		for _, ev := range page.Records {
			history.Add(ev)
		}
	}
	sb.Record = history.Record()
	return sb, nil
}

// Past returns a sandbox that is not in memory: a deleted one whose history is kept.
// Otherwise the error is errdefs.ErrNotFound.
func (l *Ledger) Past(ctx context.Context, id string) (Sandbox, error) {
	sb, kept, dropped := l.past.get(id)
	if kept {
		return sb, nil
	}
	sb, err := l.load(ctx, id)
	if err == nil && !sb.Exists() || errdefs.IsNotFound(err) {
		return Sandbox{}, notFound(id)
	}
	if err == nil {
		l.past.put(sb, dropped)
	}
	return sb, err
}

// PastIDs returns the ids of deleted sandboxes whose history is kept.
func (l *Ledger) PastIDs(ctx context.Context) ([]string, error) {
	all, err := look(ctx, l, (*store.Tx).SandboxIDs)
	past := all[:0]
	for _, id := range all {
		if _, living := l.Sandbox(id); !living {
			past = append(past, id)
		}
	}
	return past, err
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
	at, err = look(ctx, l, func(tx *store.Tx) time.Time { at, _ := tx.DeletedAt(id); return at })
	if at.IsZero() {
		at = sb.StateChangedAt
	}
	return at, true, err
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

// loadAgent folds one agent from the store.
func (l *Ledger) loadAgent(ctx context.Context, id string) (Agent, error) {
	spec, err := view(ctx, l, func(tx *store.Tx) (*agboxv1.AgentSpec, error) { return tx.AgentConfig(id) })
	a := Agent{Spec: spec}
	for page := (store.Page[*agboxv1.AgentEvent]{More: true}); err == nil && page.More; {
		page, err = l.pageOfAgent(ctx, id, page.Next, loadPage)
		if err == nil && len(page.Bad) > 0 {
			return a, page.Bad[0]
		}
		for _, ev := range page.Records {
			a.Record = agents.Fold(a.Record, ev)
		}
	}
	return a, err
}

// PastAgent reads the record of an agent, deleted or not. Of a deleted one, what cannot be read
// is passed over; one that ended at an unknown time counts as ended when it was deleted.
func (l *Ledger) PastAgent(ctx context.Context, id string) (a Agent, err error) {
	a, err = l.loadAgent(ctx, id)
	if damaged := new(store.RecordError); !errors.As(err, &damaged) {
		return a, err
	}
	events, failed := l.allOfAgent(ctx, id)
	if failed != nil {
		return a, failed
	}
	var r agents.Record
	for _, ev := range events {
		if r = agents.Fold(r, ev); r.Deleted && r.EndedAt.IsZero() {
			r.EndedAt = ev.GetOccurredAt().AsTime()
		}
	}
	if !r.Deleted {
		return a, err
	}
	return Agent{Record: r, Spec: a.Spec}, nil
}

// AgentIDUsed reports whether the id was ever given to an agent.
func (l *Ledger) AgentIDUsed(ctx context.Context, id string) (used bool, err error) {
	return look(ctx, l, func(tx *store.Tx) bool { return tx.AgentReserved(id) })
}
