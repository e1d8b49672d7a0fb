package store

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

var agentEvents = stream[*agboxv1.AgentEvent]{
	of: "agent", history: bucketAgentEvents, removed: keyAgentTrimmed, order: bucketAgentOrder, allRemoved: keyAgentsTrimmed,
	blank: func() *agboxv1.AgentEvent { return new(agboxv1.AgentEvent) },
}

// ReserveAgent reserves the agent id for ever. If the id was reserved before, the error is
// a fault AGENT_ID_ALREADY_EXISTS that wraps ErrReserved.
func (t *Tx) ReserveAgent(agentID string, now time.Time) error {
	return t.reserve(bucketAgentIDs, "agent", agentID, now, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
}

// AgentReserved reports whether the id was reserved.
func (t *Tx) AgentReserved(agentID string) bool { return t.get(bucketAgentIDs, []byte(agentID)) != nil }

// PutAgentConfig stores the resolved spec of an agent.
func (t *Tx) PutAgentConfig(agentID string, spec *agboxv1.AgentSpec) error {
	if !ids.Valid(agentID) {
		return invalidID("agent", agentID)
	}
	return t.putMessage(bucketAgentConfig, []byte(agentID), spec)
}

// AgentConfig returns the spec, errdefs.ErrNotFound or a *RecordError.
func (t *Tx) AgentConfig(agentID string) (*agboxv1.AgentSpec, error) {
	spec := &agboxv1.AgentSpec{}
	return spec, t.message(bucketAgentConfig, []byte(agentID), spec)
}

// PutAgentWork stores the work of an agent.
func (t *Tx) PutAgentWork(agentID string, work []byte) error {
	if !ids.Valid(agentID) {
		return invalidID("agent", agentID)
	}
	return t.putFramed(bucketAgentWork, []byte(agentID), work)
}

// AgentWork returns the work of an agent, which is empty if the agent has none, or a
// *RecordError.
func (t *Tx) AgentWork(agentID string) ([]byte, error) {
	work := new(storev1.AgentWork)
	err := t.message(bucketAgentWork, []byte(agentID), work)
	if errdefs.IsNotFound(err) {
		err = nil
	}
	return work.GetContent(), err
}

// AgentIDs lists all agents that have a config, in byte order. It decodes no records.
func (t *Tx) AgentIDs() []string { return t.keys(bucketAgentConfig, "", math.MaxInt) }

// AppendAgentEvent adds the event to its agent's history. agent_id and type must be set.
// It sets sequence, position and event_id in ev and clears replay.
func (t *Tx) AppendAgentEvent(ev *agboxv1.AgentEvent) error {
	id := ev.GetAgentId()
	typed := ev.GetType() != agboxv1.AgentEventType_AGENT_EVENT_TYPE_UNSPECIFIED
	return agentEvents.append(t, id, typed, ev, func(sequence, position uint64) {
		ev.Sequence, ev.Position, ev.EventId, ev.Replay = sequence, position, fmt.Sprintf("%s/%d", id, sequence), false
	})
}

// DropAgentEvent removes an event that a newer one of the same type replaces, also if it cannot
// be read. Streams may have sent it or not, so it does not count as trimmed. The newest event stays.
func (t *Tx) DropAgentEvent(agentID string, sequence uint64, typ agboxv1.AgentEventType) error {
	ev := &agboxv1.AgentEvent{}
	if err := t.message(bucketAgentEvents(agentID), number(sequence), ev); err == nil && ev.GetType() != typ {
		return fmt.Errorf("event %d of agent %q is %s: %w", sequence, agentID, ev.GetType(), errdefs.ErrInvalidArgument)
	}
	_, _, err := agentEvents.remove(t, agentID, []uint64{sequence})
	return err
}

// RemoveAgentEvents removes events of an agent from its history and from the order of all, and
// records the removal in Trimmed. It keeps the newest event, because the next sequence is
// computed from it. It ignores sequences that do not exist.
func (t *Tx) RemoveAgentEvents(agentID string, sequences ...uint64) error {
	_, positions, err := agentEvents.remove(t, agentID, sequences)
	if err != nil {
		return err
	}
	return errors.Join(t.trim(keyAgentTrimmed(agentID), positions), t.trim(keyAgentsTrimmed, positions))
}

// AgentEvents returns up to limit events of an agent after the given sequence. A limit
// below 1 counts as 1.
func (t *Tx) AgentEvents(agentID string, after uint64, limit int) Page[*agboxv1.AgentEvent] {
	return agentEvents.page(t, agentID, after, limit, 0)
}

// OrderedAgentEvents returns up to limit events of all agents after the given position. A
// limit below 1 counts as 1.
func (t *Tx) OrderedAgentEvents(after uint64, limit int) Page[*agboxv1.AgentEvent] {
	page := readPage(t, bucketAgentOrder, after, limit, 0, func(_ uint64, key, raw []byte) (*agboxv1.AgentEvent, error) {
		return agentEvents.referred(t, key, raw)
	})
	page.Trimmed = t.AgentsTrimmed()
	return page
}

// LastAgentSequence is the sequence of the agent's newest event; 0 if it has none.
func (t *Tx) LastAgentSequence(agentID string) uint64 {
	return t.edge(bucketAgentEvents(agentID), true)
}

// LastAgentPosition is the highest position ever used for an event of an agent; 0 before
// the first.
func (t *Tx) LastAgentPosition() uint64 { return t.highest(bucketAgentOrder) }

// DropAgent removes everything of an agent except the reservation of its id.
func (t *Tx) DropAgent(agentID string) error {
	return errors.Join(
		agentEvents.drop(t, agentID),
		t.dropInbox(agentID),
		t.remove(bucketAgentConfig, []byte(agentID)),
		t.remove(bucketAgentWork, []byte(agentID)))
}

// AgentTrimmed returns what was removed from the history of one agent, as positions.
func (t *Tx) AgentTrimmed(agentID string) Trimmed { return t.trimmed(keyAgentTrimmed(agentID)) }

// AgentsTrimmed returns what was removed from the order of all events of agents.
func (t *Tx) AgentsTrimmed() Trimmed { return t.trimmed(keyAgentsTrimmed) }
