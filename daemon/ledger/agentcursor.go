package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

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

// read reads the next events and what was removed. Of one agent it reads no other's.
func (c *AgentCursor) read(tx *store.Tx, limit int) (store.AgentPage, store.Trimmed) {
	if c.agentID == "" {
		return tx.OrderedAgentEvents(c.At, limit), tx.AgentsTrimmed()
	}
	return tx.AgentEvents(c.agentID, c.sequence, limit), tx.AgentTrimmed(c.agentID)
}

// OpenAgentEvents starts a stream of the events of an agent, or of all if agentID is empty,
// after a position. It is OUT_OF_RANGE if the stream would skip an event that was removed,
// or if the position never existed. 0 requests everything that is kept.
func (l *Ledger) OpenAgentEvents(ctx context.Context, agentID string, after uint64) (*AgentCursor, error) {
	c := &AgentCursor{At: after, agentID: agentID}
	var last uint64
	err := l.store.View(ctx, func(tx *store.Tx) error {
		last = tx.LastAgentPosition()
		_, c.trimmed = c.read(tx, 1)
		return nil
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
	var page store.AgentPage
	var trimmed store.Trimmed
	err = l.store.View(ctx, func(tx *store.Tx) error {
		page, trimmed = c.read(tx, limit)
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	moved := trimmed.Count != c.trimmed.Count
	c.trimmed = trimmed
	if moved && c.At > 0 && trimmed.UpTo > c.At {
		return nil, false, c.outOfRange()
	}
	for _, ev := range page.Events {
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
	var page store.AgentPage
	err = l.store.View(ctx, func(tx *store.Tx) error {
		page = tx.AgentEvents(agentID, after, limit)
		return nil
	})
	if err != nil {
		return nil, after, false, err
	}
	return page.Events, page.Next, page.More, nil
}
