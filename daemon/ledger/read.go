package ledger

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// pageBytes bounds the memory of one page of events.
const pageBytes = 1 << 20

// Events returns the next events of a sandbox after a sequence, at most limit.
func (l *Ledger) Events(ctx context.Context, sandboxID string, after uint64, limit int) (store.EventPage, error) {
	var page store.EventPage
	err := l.store.View(ctx, func(tx *store.Tx) error {
		page = tx.Events(sandboxID, after, limit, pageBytes)
		return nil
	})
	return page, err
}

// NewestEvent returns the newest event of a sandbox for which fits is true, not newer
// than the record, so that no stream is ahead of it. SANDBOX_ACCEPTED exists as long as
// the sandbox.
func (l *Ledger) NewestEvent(ctx context.Context, sb Sandbox, fits func(*agboxv1.SandboxEvent) bool) (*agboxv1.SandboxEvent, error) {
	var newest *agboxv1.SandboxEvent
	err := l.store.View(ctx, func(tx *store.Tx) (err error) {
		newest, err = tx.NewestEvent(sb.ID, sb.LastSequence, fits)
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil, notFound(sb.ID) // removed since it was found
	}
	return newest, err
}

// FindSandbox resolves an id, a name or a unique prefix of an id, in this order.
// Deleted sandboxes are found by id or prefix.
func (l *Ledger) FindSandbox(ctx context.Context, ref string) (Sandbox, error) {
	if sb, ok := l.Sandbox(ref); ok {
		return sb, nil
	}
	l.mu.RLock()
	named, ok := l.sandboxes[l.names[ref]]
	var fits []Sandbox
	if !ok {
		for id, sb := range l.sandboxes {
			if strings.HasPrefix(id, ref) {
				fits = append(fits, sb)
			}
		}
	}
	l.mu.RUnlock()
	switch {
	case ok:
		return named, nil
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return Sandbox{}, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_SANDBOX_AMBIGUOUS,
			"%q fits %d sandboxes: give more of the id.", ref, len(fits)).With("sandbox_id", ref)
	}
	return l.Past(ctx, ref)
}
