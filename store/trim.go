package store

import (
	"errors"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Trimmed says what was removed from a stream of events. A reader whose cursor
// is at UpTo or beyond has missed nothing.
type Trimmed struct {
	// UpTo is the highest sequence or position that was removed; 0 if none was.
	UpTo uint64
	// Count is how many events were ever removed. A reader compares it with an
	// earlier value to detect removals in between.
	Count uint64
}

// ForgetExecs removes the configs of execs, their request keys and their entries in the index of
// newest events. Their ids stay reserved. RemoveEvents removes their events.
func (t *Tx) ForgetExecs(sandboxID string, execIDs ...string) error {
	for _, id := range execIDs {
		err := errors.Join(
			t.forgetExecKey(sandboxID, id),
			t.remove(bucketExecConfig(sandboxID), []byte(id)),
			t.remove(bucketExecSecrets(sandboxID), []byte(id)),
			t.remove(bucketExecLastEvent(sandboxID), []byte(id)))
		if err != nil {
			return err
		}
	}
	return nil
}

// RemoveEvents removes events of a sandbox from its history and from the order
// of all events, and records the removal in Trimmed. It keeps the sandbox's
// newest event, because the next sequence is computed from it. It ignores
// sequences that do not exist.
func (t *Tx) RemoveEvents(sandboxID string, sequences ...uint64) error {
	newest := t.LastSequence(sandboxID)
	own, order := t.trimmed([]byte(sandboxID)), t.trimmed(keyAllTrimmed)
	before := own.Count
	withoutPosition := make(map[uint64]bool) // events that do not record their position
	for _, sequence := range sequences {
		raw := t.get(bucketEvents(sandboxID), number(sequence))
		if raw == nil || sequence == newest {
			continue
		}
		position := positionOf(raw)
		if position == 0 {
			withoutPosition[sequence] = true
		} else if err := t.removePosition(position, &order); err != nil {
			return err
		}
		if err := t.remove(bucketEvents(sandboxID), number(sequence)); err != nil {
			return err
		}
		own.add(sequence)
	}
	if own.Count == before {
		return nil
	}
	if len(withoutPosition) > 0 {
		if err := t.removePositionsByScan(sandboxID, &order, func(sequence uint64) bool { return withoutPosition[sequence] }); err != nil {
			return err
		}
	}
	return errors.Join(t.putTrimmed([]byte(sandboxID), own), t.putTrimmed(keyAllTrimmed, order))
}

// DropSandbox removes everything of a sandbox except the reservations of its id
// and of its execs' ids. Its cost grows with the number of the sandbox's events,
// so remove most of them with RemoveEvents first.
func (t *Tx) DropSandbox(sandboxID string) error {
	order := t.trimmed(keyAllTrimmed)
	if err := t.removeAllPositions(sandboxID, &order); err != nil {
		return err
	}
	return errors.Join(
		t.forgetExecKeys(sandboxID),
		t.forgetSandboxKey(sandboxID),
		t.EraseSecrets(sandboxID),
		t.drop(bucketEvents(sandboxID)),
		t.drop(bucketExecConfig(sandboxID)),
		t.drop(bucketExecLastEvent(sandboxID)),
		t.remove(bucketSandboxConfig, []byte(sandboxID)),
		t.remove(bucketSandboxDeleted, []byte(sandboxID)),
		t.remove(bucketEventsTrimmed, []byte(sandboxID)),
		t.putTrimmed(keyAllTrimmed, order))
}

// removeAllPositions removes all of a sandbox's events from the order of all events.
func (t *Tx) removeAllPositions(sandboxID string, order *Trimmed) error {
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
	return t.removePositionsByScan(sandboxID, order, func(uint64) bool { return true })
}

// positionOf returns 0 for an event that cannot be read or does not record its
// position.
func positionOf(raw []byte) uint64 {
	ev := &agboxv1.SandboxEvent{}
	if proto.Unmarshal(raw, ev) != nil {
		return 0
	}
	return ev.GetPosition()
}

func (t *Tx) removePosition(position uint64, order *Trimmed) error {
	order.add(position)
	return t.remove(bucketEventOrder, number(position))
}

// removePositionsByScan removes entries of a sandbox from the order of all
// events. It scans the whole order, which only events without a recorded position
// need: those that an older schema wrote and a migration indexed.
func (t *Tx) removePositionsByScan(sandboxID string, order *Trimmed, gone func(sequence uint64) bool) error {
	var positions []uint64 // collected first: a bbolt cursor is invalid after a removal
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

func (r *Trimmed) add(n uint64) {
	r.UpTo = max(r.UpTo, n)
	r.Count++
}

// trimmed reads the record of removals under key. A damaged record counts as none.
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

// Trimmed returns what was removed from a sandbox's history.
func (t *Tx) Trimmed(sandboxID string) Trimmed { return t.trimmed([]byte(sandboxID)) }

// OrderTrimmed returns what was removed from the order of all events.
func (t *Tx) OrderTrimmed() Trimmed { return t.trimmed(keyAllTrimmed) }
