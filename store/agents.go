package store

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// AgentPage is a contiguous part of one agent's history. The fields are as in EventPage.
type AgentPage struct {
	Events []*agboxv1.AgentEvent
	Bad    []*RecordError
	Next   uint64
	More   bool
}

// ReserveAgent reserves the agent id for ever. If the id was reserved before, the error is
// a fault AGENT_ID_ALREADY_EXISTS that wraps ErrReserved.
func (t *Tx) ReserveAgent(agentID string, now time.Time) error {
	if !ids.Valid(agentID) {
		return invalidID("agent", agentID)
	}
	if t.AgentReserved(agentID) {
		return reserved("agent", agentID, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
	}
	return t.put(bucketAgentIDs, []byte(agentID), instant(now))
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
	agentID := ev.GetAgentId()
	if !ids.Valid(agentID) {
		return invalidID("agent", agentID)
	}
	if ev.GetType() == agboxv1.AgentEventType_AGENT_EVENT_TYPE_UNSPECIFIED {
		return fmt.Errorf("event of agent %q without a type: %w", agentID, errdefs.ErrInvalidArgument)
	}
	order, err := t.write(bucketAgentOrder)
	if err != nil {
		return err
	}
	position, err := order.NextSequence()
	if err != nil {
		return err
	}
	ev.Sequence, ev.Position = t.LastAgentSequence(agentID)+1, position
	ev.EventId, ev.Replay = fmt.Sprintf("%s/%d", agentID, ev.Sequence), false
	if err := t.putMessage(bucketAgentEvents(agentID), number(ev.Sequence), ev); err != nil {
		return err
	}
	return t.putMessage(bucketAgentOrder, number(position), &storev1.AgentEventRef{AgentId: agentID, Sequence: ev.Sequence})
}

// DropAgentEvent removes an event that a newer one of the same type replaces, also if it cannot
// be read. Streams may have sent it or not, so it does not count as trimmed.
func (t *Tx) DropAgentEvent(agentID string, sequence uint64, typ agboxv1.AgentEventType) error {
	ev := &agboxv1.AgentEvent{}
	if err := t.message(bucketAgentEvents(agentID), number(sequence), ev); err != nil {
		_, err = t.removeAgentEvents(agentID, []uint64{sequence})
		return err
	}
	if ev.GetType() != typ {
		return fmt.Errorf("event %d of agent %q is %s: %w", sequence, agentID, ev.GetType(), errdefs.ErrInvalidArgument)
	}
	return errors.Join(t.remove(bucketAgentEvents(agentID), number(sequence)), t.remove(bucketAgentOrder, number(ev.GetPosition())))
}

// RemoveAgentEvents removes events of an agent from its history and from the order of all, and
// records the removal in Trimmed. It keeps the newest event, because the next sequence is
// computed from it. It ignores sequences that do not exist.
func (t *Tx) RemoveAgentEvents(agentID string, sequences ...uint64) error {
	newest := t.LastAgentSequence(agentID)
	positions, err := t.removeAgentEvents(agentID, slices.DeleteFunc(slices.Clone(sequences), func(n uint64) bool { return n == newest }))
	if err != nil || len(positions) == 0 {
		return err
	}
	own, all := t.AgentTrimmed(agentID), t.AgentsTrimmed()
	for _, position := range positions {
		own.add(position)
		all.add(position)
	}
	return errors.Join(t.putTrimmed(keyAgentTrimmed(agentID), own), t.putTrimmed(keyAgentsTrimmed, all))
}

// removeAgentEvents returns the positions of the events that it has removed. To find that of an
// event that cannot be read, it reads the whole order.
func (t *Tx) removeAgentEvents(agentID string, sequences []uint64) (positions []uint64, err error) {
	var unreadable []uint64
	for _, sequence := range sequences {
		raw := t.get(bucketAgentEvents(agentID), number(sequence))
		if raw == nil {
			continue
		}
		ev := &agboxv1.AgentEvent{}
		if decode(bucketAgentEvents(agentID), number(sequence), raw, ev) != nil || ev.GetPosition() == 0 {
			unreadable = append(unreadable, sequence)
		} else {
			positions = append(positions, ev.GetPosition())
		}
		err = errors.Join(err, t.remove(bucketAgentEvents(agentID), number(sequence)))
	}
	if len(unreadable) > 0 {
		positions = append(positions, t.agentPositions(agentID, func(sequence uint64) bool { return slices.Contains(unreadable, sequence) })...)
	}
	for _, position := range positions {
		err = errors.Join(err, t.remove(bucketAgentOrder, number(position)))
	}
	return positions, err
}

// AgentEvents returns up to limit events of an agent after the given sequence. A limit
// below 1 counts as 1.
func (t *Tx) AgentEvents(agentID string, after uint64, limit int) AgentPage {
	bucket := bucketAgentEvents(agentID)
	page := readPage(t, bucket, after, limit, 0, func(_ uint64, key, raw []byte) (*agboxv1.AgentEvent, error) {
		ev := &agboxv1.AgentEvent{}
		return ev, decode(bucket, key, raw, ev)
	})
	return AgentPage{Events: page.good, Bad: page.bad, Next: page.next, More: page.more}
}

// OrderedAgentEvents returns up to limit events of all agents after the given position. A
// limit below 1 counts as 1.
func (t *Tx) OrderedAgentEvents(after uint64, limit int) AgentPage {
	page := readPage(t, bucketAgentOrder, after, limit, 0, func(_ uint64, key, raw []byte) (*agboxv1.AgentEvent, error) {
		ref := &storev1.AgentEventRef{}
		if err := decode(bucketAgentOrder, key, raw, ref); err != nil {
			return nil, err
		}
		ev := &agboxv1.AgentEvent{}
		return ev, t.message(bucketAgentEvents(ref.GetAgentId()), number(ref.GetSequence()), ev)
	})
	return AgentPage{Events: page.good, Bad: page.bad, Next: page.next, More: page.more}
}

// LastAgentSequence is the sequence of the agent's newest event; 0 if it has none.
func (t *Tx) LastAgentSequence(agentID string) uint64 {
	return t.edge(bucketAgentEvents(agentID), true)
}

// LastAgentPosition is the highest position ever used for an event of an agent; 0 before
// the first.
func (t *Tx) LastAgentPosition() uint64 {
	if b := t.bolt.Bucket(bucketAgentOrder); b != nil {
		return b.Sequence()
	}
	return 0
}

// DropAgent removes everything of an agent except the reservation of its id.
func (t *Tx) DropAgent(agentID string) error {
	order := t.trimmed(keyAgentsTrimmed)
	unreadable := false
	var positions []uint64 // collected first: a bbolt cursor is invalid after a removal
	t.eachNumber(bucketAgentEvents(agentID), 0, func(_ uint64, key, raw []byte) bool {
		ev := &agboxv1.AgentEvent{}
		if decode(bucketAgentEvents(agentID), key, raw, ev) != nil || ev.GetPosition() == 0 {
			unreadable = true
		} else {
			positions = append(positions, ev.GetPosition())
		}
		return true
	})
	if unreadable {
		positions = t.agentPositions(agentID, func(uint64) bool { return true })
	}
	for _, position := range positions {
		order.add(position)
		if err := t.remove(bucketAgentOrder, number(position)); err != nil {
			return err
		}
	}
	return errors.Join(
		t.drop(bucketAgentEvents(agentID)),
		t.dropInbox(agentID),
		t.remove(bucketAgentConfig, []byte(agentID)),
		t.remove(bucketAgentWork, []byte(agentID)),
		t.remove(bucketEventsTrimmed, keyAgentTrimmed(agentID)),
		t.putTrimmed(keyAgentsTrimmed, order))
}

// agentPositions finds the positions of an agent's events that fit in the order of all events.
// It reads the whole order, which only an agent with a damaged event needs.
func (t *Tx) agentPositions(agentID string, fits func(sequence uint64) bool) []uint64 {
	var positions []uint64
	t.eachNumber(bucketAgentOrder, 0, func(position uint64, key, raw []byte) bool {
		ref := &storev1.AgentEventRef{}
		if decode(bucketAgentOrder, key, raw, ref) == nil && ref.GetAgentId() == agentID && fits(ref.GetSequence()) {
			positions = append(positions, position)
		}
		return true
	})
	return positions
}

// AgentTrimmed returns what was removed from the history of one agent, as positions.
func (t *Tx) AgentTrimmed(agentID string) Trimmed { return t.trimmed(keyAgentTrimmed(agentID)) }

// AgentsTrimmed returns what was removed from the order of all events of agents.
func (t *Tx) AgentsTrimmed() Trimmed { return t.trimmed(keyAgentsTrimmed) }
