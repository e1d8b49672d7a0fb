package ledger

import (
	"context"
	"strconv"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// Cursor is a reader's place in a stream of events. It knows which removals the
// reader has put up with, so that no event is ever skipped unsaid: a reader from
// 0 takes the holes that it finds, one that goes on from somewhere takes none.
type Cursor struct {
	// At is what the reader has seen: a sequence, or a position.
	At uint64
	// Last is the newest that there was when the stream began.
	Last uint64
	// Newest is the newest that was kept then; less than Last when that was removed.
	Newest uint64

	sandboxID string // empty for the stream of all
	trimmed   store.Trimmed
}

// OpenEvents begins a stream of a sandbox's events after a sequence. It is
// OUT_OF_RANGE when going on there would skip something, or wait for something
// that was never there.
func (l *Ledger) OpenEvents(ctx context.Context, sandboxID string, after uint64) (*Cursor, error) {
	c := &Cursor{At: after, sandboxID: sandboxID}
	var first uint64
	err := l.store.View(ctx, func(tx *store.Tx) error {
		first, c.Last = tx.FirstSequence(sandboxID), tx.LastSequence(sandboxID)
		c.Newest = c.Last // it is never removed
		c.trimmed = tx.Trimmed(sandboxID)
		return nil
	})
	if err == nil && c.stale(first) {
		err = c.outOfRange()
	}
	return c, err
}

// OpenAllEvents is OpenEvents for the events of all sandboxes and a position.
func (l *Ledger) OpenAllEvents(ctx context.Context, after uint64) (*Cursor, error) {
	c := &Cursor{At: after}
	var first uint64
	err := l.store.View(ctx, func(tx *store.Tx) error {
		first, c.Last, c.Newest = tx.FirstPosition(), tx.LastPosition(), tx.NewestPosition()
		c.trimmed = tx.OrderTrimmed()
		return nil
	})
	published := l.newest()
	c.Last, c.Newest = min(c.Last, published), min(c.Newest, published)
	if err == nil && c.stale(first) {
		err = c.outOfRange()
	}
	return c, err
}

// stale tells whether going on after the cursor would skip something, or wait
// for something that was never there. 0 asks for all that is kept.
func (c *Cursor) stale(first uint64) bool {
	return c.At > c.Last || c.At > 0 && (c.At+1 < first || c.At < c.trimmed.UpTo)
}

// overtaken tells whether something ahead of the reader may have been removed
// since it last looked, and takes the new look.
func (c *Cursor) overtaken(now store.Trimmed) bool {
	moved := now.Count != c.trimmed.Count
	c.trimmed = now
	return moved && now.UpTo > c.At
}

func (c *Cursor) outOfRange() error {
	if c.sandboxID == "" {
		return fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE,
			"The events after position %d are not all kept (the newest is %d); start again from 0.", c.At, c.Last)
	}
	return fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_SANDBOX_EVENT_SEQUENCE_EXPIRED,
		"The events of sandbox %s after sequence %d are not all kept (the newest is %d); start again from 0.", c.sandboxID, c.At, c.Last).
		With("sandbox_id", c.sandboxID).With("from_sequence", strconv.FormatUint(c.At, 10))
}

// NextEvents reads on in a sandbox's events, at most limit, and moves the cursor.
// more tells that there are further ones already. What the ledger does not know
// yet is left for the next call; see newest.
func (l *Ledger) NextEvents(ctx context.Context, c *Cursor, limit int) (events []*agboxv1.SandboxEvent, more bool, err error) {
	page, err := l.Events(ctx, c.sandboxID, c.At, limit)
	if err == nil && c.overtaken(page.Trimmed) {
		err = c.outOfRange()
	}
	if err != nil {
		return nil, false, err
	}
	if sb, living := l.Sandbox(c.sandboxID); living {
		for i, ev := range page.Events {
			if ev.GetSequence() > sb.LastSequence {
				c.At = max(c.At, sb.LastSequence)
				return page.Events[:i], false, nil
			}
		}
	}
	c.At = page.Next
	return page.Events, page.More, nil
}

// newest is the position of the newest event that is part of what the ledger says
// of sandboxes. Streams end there: who has read an event and then asks for its
// sandbox must not be told an older state, because no further event may come.
func (l *Ledger) newest() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.published
}

// NextOfAll is NextEvents for the events of all sandboxes.
func (l *Ledger) NextOfAll(ctx context.Context, c *Cursor, limit int) (events []store.OrderedEvent, more bool, err error) {
	var page store.OrderedPage
	err = l.store.View(ctx, func(tx *store.Tx) error {
		page = tx.OrderedEvents(c.At, limit)
		return nil
	})
	if err == nil && c.overtaken(page.Trimmed) {
		err = c.outOfRange()
	}
	if err != nil {
		return nil, false, err
	}
	published := l.newest()
	for i, item := range page.Events {
		if item.Position > published {
			c.At = max(c.At, published)
			return page.Events[:i], false, nil
		}
	}
	c.At = page.Next
	return page.Events, page.More, nil
}

// Dropped tells whether a stream of a deleted sandbox has come to its end
// without its last event: the history was removed while it was read.
func (c *Cursor) Dropped() error {
	if c.At < c.Last {
		return c.outOfRange()
	}
	return nil
}
