package ledger

import (
	"context"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// pageBytes bounds the memory of one page of events.
const pageBytes = 1 << 20

// loadPage is the maximum number of events in one read transaction while loading.
const loadPage = 512

// Events returns the next events of a sandbox after a sequence, at most limit.
func (l *Ledger) Events(ctx context.Context, sandboxID string, after uint64, limit int) (store.Page[*agboxv1.SandboxEvent], error) {
	return look(ctx, l, func(tx *store.Tx) store.Page[*agboxv1.SandboxEvent] {
		return tx.Events(sandboxID, after, limit, pageBytes)
	})
}

// NewestEvent returns the newest event of a sandbox for which fits is true, not newer
// than the record, so that no stream is ahead of it. SANDBOX_ACCEPTED exists as long as
// the sandbox.
func (l *Ledger) NewestEvent(ctx context.Context, sb Sandbox, fits func(*agboxv1.SandboxEvent) bool) (*agboxv1.SandboxEvent, error) {
	newest, err := view(ctx, l, func(tx *store.Tx) (*agboxv1.SandboxEvent, error) { return tx.NewestEvent(sb.ID, sb.LastSequence, fits) })
	if errdefs.IsNotFound(err) {
		return nil, notFound(sb.ID) // removed since it was found
	}
	return newest, err
}

// Cursor is a reader's position in a stream of events. It also knows which removals
// happened before the stream began, so that no event is skipped silently: a reader from 0
// accepts existing holes, one that continues from a position accepts none.
type Cursor struct {
	// At is the sequence or position that the reader has seen.
	At uint64
	// Last is the newest sequence or position when the stream began.
	Last uint64
	// Newest is the newest that was kept then. It is less than Last if that was removed.
	Newest uint64

	sandboxID string // empty for the stream of all sandboxes
	trimmed   store.Trimmed
}

// OpenEvents starts a stream of a sandbox's events after a sequence. It is OUT_OF_RANGE
// if the stream would skip an event, or the sequence never existed.
func (l *Ledger) OpenEvents(ctx context.Context, sandboxID string, after uint64) (*Cursor, error) {
	c := &Cursor{At: after, sandboxID: sandboxID}
	return c, l.open(ctx, c, func(tx *store.Tx) (first uint64) {
		c.Last, c.trimmed = tx.LastSequence(sandboxID), tx.Trimmed(sandboxID)
		c.Newest = c.Last // the newest event of a sandbox is never removed
		return tx.FirstSequence(sandboxID)
	})
}

// OpenAllEvents is OpenEvents for the events of all sandboxes and a position.
func (l *Ledger) OpenAllEvents(ctx context.Context, after uint64) (*Cursor, error) {
	c := &Cursor{At: after}
	return c, l.open(ctx, c, func(tx *store.Tx) (first uint64) {
		c.Last, c.Newest, c.trimmed = tx.LastPosition(), tx.NewestPosition(), tx.OrderTrimmed()
		return tx.FirstPosition()
	})
}

// open checks a cursor after fill has read the bounds of its stream, of which it returns the first
// event.
func (l *Ledger) open(ctx context.Context, c *Cursor, fill func(*store.Tx) (first uint64)) error {
	first, err := look(ctx, l, fill)
	if err == nil && c.stale(first) {
		err = c.outOfRange()
	}
	return err
}

// stale reports whether continuing after the cursor would skip an event, or the cursor
// never existed. 0 requests everything that is kept.
func (c *Cursor) stale(first uint64) bool {
	return c.At > c.Last || c.At > 0 && (c.At+1 < first || c.At < c.trimmed.UpTo)
}

// overtaken reports whether events ahead of the reader may have been removed since the
// last check, and stores the new state.
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

// NextEvents reads the next events of a sandbox, at most limit, and advances the cursor.
// more means that there are further ones already.
func (l *Ledger) NextEvents(ctx context.Context, c *Cursor, limit int) (events []*agboxv1.SandboxEvent, more bool, err error) {
	page, err := l.Events(ctx, c.sandboxID, c.At, limit)
	return advance(c, page, err)
}

// NextOfAll is NextEvents for the events of all sandboxes.
func (l *Ledger) NextOfAll(ctx context.Context, c *Cursor, limit int) (events []store.OrderedEvent, more bool, err error) {
	page, err := look(ctx, l, func(tx *store.Tx) store.Page[store.OrderedEvent] { return tx.OrderedEvents(c.At, limit) })
	return advance(c, page, err)
}

// advance moves a cursor behind a page that was read.
func advance[R any](c *Cursor, page store.Page[R], err error) (events []R, more bool, _ error) {
	if err == nil && c.overtaken(page.Trimmed) {
		err = c.outOfRange()
	}
	if err != nil {
		return nil, false, err
	}
	c.At = page.Next
	return page.Records, page.More, nil
}

// Dropped returns an error if a stream of a deleted sandbox ended without its last event,
// because the history was removed while it was read.
func (c *Cursor) Dropped() error {
	if c.At < c.Last {
		return c.outOfRange()
	}
	return nil
}

// AgentCursor is a place in the events of all agents, or of one. Only one goroutine may
// use it.
type AgentCursor struct {
	// At is the position up to which events were read.
	At uint64

	agentID string // empty for all agents
	// sequence is that of the newest event of the agent that was read.
	sequence uint64
	trimmed  store.Trimmed
}

// read reads the next events. Of one agent it reads no other's.
func (c *AgentCursor) read(tx *store.Tx, limit int) store.Page[*agboxv1.AgentEvent] {
	if c.agentID == "" {
		return tx.OrderedAgentEvents(c.At, limit)
	}
	return tx.AgentEvents(c.agentID, c.sequence, limit)
}

// OpenAgentEvents starts a stream of the events of an agent, or of all if agentID is empty,
// after a position. It is OUT_OF_RANGE if the stream would skip an event that was removed,
// or if the position never existed. 0 requests everything that is kept.
func (l *Ledger) OpenAgentEvents(ctx context.Context, agentID string, after uint64) (*AgentCursor, error) {
	c := &AgentCursor{At: after, agentID: agentID}
	last, err := look(ctx, l, func(tx *store.Tx) uint64 {
		c.trimmed = c.read(tx, 1).Trimmed
		return tx.LastAgentPosition()
	})
	switch {
	case err != nil:
		return nil, err
	case after > last:
		return nil, fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE,
			"There is no event of an agent at position %d (the newest is %d); start again from 0.", after, last)
	case after > 0 && after < c.trimmed.UpTo:
		return nil, c.outOfRange()
	}
	return c, nil
}

func (c *AgentCursor) outOfRange() error {
	return fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE,
		"The events of agents after position %d are not all kept; start again from 0.", c.At)
}

// NextAgentEvents reads the next events, of at most limit positions, and advances the
// cursor. more means that there are further ones already. It is OUT_OF_RANGE if events
// ahead of the cursor were removed since the call before.
func (l *Ledger) NextAgentEvents(ctx context.Context, c *AgentCursor, limit int) (events []*agboxv1.AgentEvent, more bool, err error) {
	page, err := look(ctx, l, func(tx *store.Tx) store.Page[*agboxv1.AgentEvent] { return c.read(tx, limit) })
	if err != nil {
		return nil, false, err
	}
	moved := page.Trimmed.Count != c.trimmed.Count
	c.trimmed = page.Trimmed
	if moved && c.At > 0 && c.trimmed.UpTo > c.At {
		return nil, false, c.outOfRange()
	}
	for _, ev := range page.Records {
		if c.sequence = ev.GetSequence(); ev.GetPosition() > c.At { // else it was before the stream
			c.At, events = ev.GetPosition(), append(events, ev)
		}
	}
	if c.agentID == "" {
		c.At = page.Next
	} else {
		c.sequence = page.Next
	}
	return events, page.More, nil
}

// AgentEvents reads up to limit events of one agent after a sequence. next is the sequence
// after which to go on, and more means that there are further ones already.
func (l *Ledger) AgentEvents(ctx context.Context, agentID string, after uint64, limit int) (events []*agboxv1.AgentEvent, next uint64, more bool, err error) {
	page, err := l.pageOfAgent(ctx, agentID, after, limit)
	if err != nil {
		return nil, after, false, err
	}
	return page.Records, page.Next, page.More, nil
}

// pageOfAgent reads up to limit events of one agent after a sequence.
func (l *Ledger) pageOfAgent(ctx context.Context, id string, after uint64, limit int) (store.Page[*agboxv1.AgentEvent], error) {
	return look(ctx, l, func(tx *store.Tx) store.Page[*agboxv1.AgentEvent] { return tx.AgentEvents(id, after, limit) })
}

// allOfAgent reads the events of one agent, but for those that cannot be read.
func (l *Ledger) allOfAgent(ctx context.Context, id string) (events []*agboxv1.AgentEvent, err error) {
	for page := (store.Page[*agboxv1.AgentEvent]{More: true}); page.More; {
		if page, err = l.pageOfAgent(ctx, id, page.Next, loadPage); err != nil {
			return nil, err
		}
		events = append(events, page.Records...)
	}
	return events, nil
}
