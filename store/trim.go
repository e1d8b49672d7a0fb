package store

import (
	"errors"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Trimmed tells what was removed from a stream of events. A reader that has
// come to UpTo or beyond has missed nothing.
type Trimmed struct {
	// UpTo is the highest sequence or position that was removed; 0 if none was.
	UpTo uint64
	// Count is how many events were removed in all: it tells whether any were
	// since an earlier look.
	Count uint64
}

// ForgetExecs removes what was asked of execs. Their ids stay reserved, and
// their events are RemoveEvents' matter.
func (t *Tx) ForgetExecs(sandboxID string, execIDs ...string) error {
	for _, id := range execIDs {
		err := errors.Join(
			t.remove(bucketExecConfig(sandboxID), []byte(id)),
			t.remove(bucketExecLastEvent(sandboxID), []byte(id)))
		if err != nil {
			return err
		}
	}
	return nil
}

// RemoveEvents removes events of a sandbox from its history and from the order
// of all events, and remembers that there is a hole now. The sandbox's newest
// event stays, because the next sequence follows from it; what is not there is
// passed over.
func (t *Tx) RemoveEvents(sandboxID string, sequences ...uint64) error {
	newest := t.LastSequence(sandboxID)
	own, order := t.trimmed([]byte(sandboxID)), t.trimmed(keyAllTrimmed)
	before := own.Count
	lost := make(map[uint64]bool) // without a position of their own
	for _, sequence := range sequences {
		raw := t.get(bucketEvents(sandboxID), number(sequence))
		if raw == nil || sequence == newest {
			continue
		}
		position := positionOf(raw)
		if position == 0 {
			lost[sequence] = true
		} else if err := t.removePosition(position, &order); err != nil {
			return err
		}
		if err := t.remove(bucketEvents(sandboxID), number(sequence)); err != nil {
			return err
		}
		own.note(sequence)
	}
	if own.Count == before {
		return nil
	}
	if len(lost) > 0 {
		if err := t.forgetOrder(sandboxID, &order, func(sequence uint64) bool { return lost[sequence] }); err != nil {
			return err
		}
	}
	return errors.Join(t.putTrimmed([]byte(sandboxID), own), t.putTrimmed(keyAllTrimmed, order))
}

// DropSandbox forgets all of a sandbox but that its id and those of its execs
// are taken. What it costs grows with the sandbox's events: remove most of
// them before.
func (t *Tx) DropSandbox(sandboxID string) error {
	order := t.trimmed(keyAllTrimmed)
	if err := t.dropOrder(sandboxID, &order); err != nil {
		return err
	}
	return errors.Join(
		t.drop(bucketEvents(sandboxID)),
		t.drop(bucketExecConfig(sandboxID)),
		t.drop(bucketExecLastEvent(sandboxID)),
		t.remove(bucketSandboxConfig, []byte(sandboxID)),
		t.remove(bucketSandboxDeleted, []byte(sandboxID)),
		t.remove(bucketEventsTrimmed, []byte(sandboxID)),
		t.putTrimmed(keyAllTrimmed, order))
}

// dropOrder removes all of a sandbox's events from the order of all events.
func (t *Tx) dropOrder(sandboxID string, order *Trimmed) error {
	var positions []uint64
	complete := true
	t.eachNumber(bucketEvents(sandboxID), 0, func(_ uint64, _, raw []byte) bool {
		if position := positionOf(raw); position > 0 {
			positions = append(positions, position)
		} else {
			complete = false
		}
		return true
	})
	for _, position := range positions {
		if err := t.removePosition(position, order); err != nil {
			return err
		}
	}
	if complete {
		return nil
	}
	return t.forgetOrder(sandboxID, order, func(uint64) bool { return true })
}

// positionOf is 0 for an event that cannot be read or does not tell.
func positionOf(raw []byte) uint64 {
	ev := &agboxv1.SandboxEvent{}
	if proto.Unmarshal(raw, ev) != nil {
		return 0
	}
	return ev.GetPosition()
}

func (t *Tx) removePosition(position uint64, order *Trimmed) error {
	order.note(position)
	return t.remove(bucketEventOrder, number(position))
}

// forgetOrder removes entries of a sandbox from the order of all events by
// reading all of it: only events of a database that was indexed later need that.
func (t *Tx) forgetOrder(sandboxID string, order *Trimmed, gone func(sequence uint64) bool) error {
	var positions []uint64 // a bbolt cursor must not walk what is being removed
	t.eachNumber(bucketEventOrder, 0, func(position uint64, _, raw []byte) bool {
		ref := &storev1.EventRef{}
		if proto.Unmarshal(raw, ref) == nil && ref.GetSandboxId() == sandboxID && gone(ref.GetSequence()) {
			positions = append(positions, position)
		}
		return true
	})
	for _, position := range positions {
		if err := t.removePosition(position, order); err != nil {
			return err
		}
	}
	return nil
}

func (r *Trimmed) note(n uint64) {
	r.UpTo = max(r.UpTo, n)
	r.Count++
}

// trimmed reads a mark. One that is damaged counts as none.
func (t *Tx) trimmed(key []byte) Trimmed {
	m := &storev1.Trimmed{}
	if err := t.message(bucketEventsTrimmed, key, m); err != nil {
		return Trimmed{}
	}
	return Trimmed{UpTo: m.GetUpTo(), Count: m.GetCount()}
}

func (t *Tx) putTrimmed(key []byte, r Trimmed) error {
	if r.Count == 0 {
		return nil
	}
	return t.putMessage(bucketEventsTrimmed, key, &storev1.Trimmed{UpTo: r.UpTo, Count: r.Count})
}

// Trimmed tells what was removed from a sandbox's history.
func (t *Tx) Trimmed(sandboxID string) Trimmed { return t.trimmed([]byte(sandboxID)) }

// OrderTrimmed tells what was removed from the order of all events.
func (t *Tx) OrderTrimmed() Trimmed { return t.trimmed(keyAllTrimmed) }
