package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

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
