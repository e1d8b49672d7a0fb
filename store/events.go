package store

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// EventPage is a run of one sandbox's events.
type EventPage struct {
	// Events in the order of their sequence. Sequences have no gap but where
	// events were removed.
	Events []*agboxv1.SandboxEvent
	// Bad are the records of the run that cannot be read.
	Bad []*RecordError
	// Next is the sequence of the last record of the run, readable or not: the
	// "after" of the next page. On an empty page it is what was asked for.
	Next uint64
	// More tells that there were further records.
	More bool
	// Trimmed tells of the removals up to now.
	Trimmed Trimmed
}

// OrderedEvent is an event with its place among the events of all sandboxes.
type OrderedEvent struct {
	// Position counts from 1. Positions have no gap but where events were removed.
	Position uint64
	Event    *agboxv1.SandboxEvent
}

// OrderedPage is a run of the events of all sandboxes.
type OrderedPage struct {
	// Events in the order in which they were committed.
	Events []OrderedEvent
	// Bad are the records of the run that cannot be read.
	Bad []*RecordError
	// Next is the position of the last record of the run, readable or not.
	Next uint64
	// More tells that there were further records.
	More bool
	// Trimmed tells of the removals up to now.
	Trimmed Trimmed
}

// AppendEvent adds the event to its sandbox's history and returns its position
// among all events. It sets sequence, position and event_id and clears replay and snapshot in ev;
// sandbox_id and event_type must be set.
func (t *Tx) AppendEvent(ev *agboxv1.SandboxEvent) (position uint64, err error) {
	sandboxID := ev.GetSandboxId()
	if !ids.Valid(sandboxID) {
		return 0, invalidID("sandbox", sandboxID)
	}
	if ev.GetEventType() == agboxv1.EventType_EVENT_TYPE_UNSPECIFIED {
		return 0, fmt.Errorf("event of sandbox %q without a type: %w", sandboxID, errdefs.ErrInvalidArgument)
	}
	order, err := t.write(bucketEventOrder)
	if err != nil {
		return 0, err
	}
	if position, err = order.NextSequence(); err != nil {
		return 0, err
	}
	ev.Sequence, ev.Position = t.LastSequence(sandboxID)+1, position
	ev.EventId = fmt.Sprintf("%s/%d", sandboxID, ev.Sequence)
	ev.Replay, ev.Snapshot = false, false
	if err := t.putMessage(bucketEvents(sandboxID), number(ev.Sequence), ev); err != nil {
		return 0, err
	}
	if execID := ev.GetExec().GetExecId(); execID != "" {
		if err := t.put(bucketExecLastEvent(sandboxID), []byte(execID), number(ev.Sequence)); err != nil {
			return 0, err
		}
	}
	return position, putRef(order, position, sandboxID, ev.Sequence)
}

// putOrder takes the next position. The bucket itself counts them, so that the position of a
// removed event is not given again.
func putOrder(order *bolt.Bucket, sandboxID string, sequence uint64) error {
	position, err := order.NextSequence()
	if err != nil {
		return err
	}
	return putRef(order, position, sandboxID, sequence)
}

func putRef(order *bolt.Bucket, position uint64, sandboxID string, sequence uint64) error {
	raw, err := deterministic.Marshal(&storev1.EventRef{SandboxId: sandboxID, Sequence: sequence})
	if err != nil {
		return err
	}
	return order.Put(number(position), raw)
}

// Event returns one event, errdefs.ErrNotFound or a *RecordError.
func (t *Tx) Event(sandboxID string, sequence uint64) (*agboxv1.SandboxEvent, error) {
	ev := &agboxv1.SandboxEvent{}
	if err := t.message(bucketEvents(sandboxID), number(sequence), ev); err != nil {
		return nil, err
	}
	return ev, nil
}

// Events returns the events of a sandbox after the given sequence: at most
// limit (at least 1), and no more once their encoding has reached maxBytes (0: no bound); one in
// any case. A sandbox without events has an empty page.
func (t *Tx) Events(sandboxID string, after uint64, limit, maxBytes int) EventPage {
	page := EventPage{Next: after, Trimmed: t.Trimmed(sandboxID)}
	bucket := bucketEvents(sandboxID)
	size := 0
	t.eachNumber(bucket, after, func(sequence uint64, key, raw []byte) bool {
		records := len(page.Events) + len(page.Bad)
		if records > 0 && (records >= limit || maxBytes > 0 && size+len(raw) > maxBytes) {
			page.More = true
			return false
		}
		size += len(raw)
		page.Next = sequence
		ev := &agboxv1.SandboxEvent{}
		if err := decode(bucket, key, raw, ev); err != nil {
			page.Bad = append(page.Bad, recordError(bucket, key, err))
		} else {
			page.Events = append(page.Events, ev)
		}
		return true
	})
	return page
}

// OrderedEvents returns up to limit (at least 1) events of all sandboxes after
// the given position.
func (t *Tx) OrderedEvents(after uint64, limit int) OrderedPage {
	page := OrderedPage{Next: after, Trimmed: t.OrderTrimmed()}
	t.eachNumber(bucketEventOrder, after, func(position uint64, key, raw []byte) bool {
		records := len(page.Events) + len(page.Bad)
		if records > 0 && records >= limit {
			page.More = true
			return false
		}
		page.Next = position
		ev, err := t.referred(key, raw)
		if err != nil {
			page.Bad = append(page.Bad, recordError(bucketEventOrder, key, err))
		} else {
			page.Events = append(page.Events, OrderedEvent{Position: position, Event: ev})
		}
		return true
	})
	return page
}

// referred reads the event that an entry of event-order points to.
func (t *Tx) referred(key, raw []byte) (*agboxv1.SandboxEvent, error) {
	ref := &storev1.EventRef{}
	if err := decode(bucketEventOrder, key, raw, ref); err != nil {
		return nil, err
	}
	return t.Event(ref.GetSandboxId(), ref.GetSequence())
}

func recordError(bucket, key []byte, err error) *RecordError {
	var record *RecordError
	if errors.As(err, &record) {
		return record
	}
	return &RecordError{Bucket: string(bucket), Key: keyText(key), Err: err}
}

// eachNumber walks a bucket with numeric keys upwards from the one after the
// given number, until fn returns false. Keys that are no numbers are passed over.
func (t *Tx) eachNumber(bucket []byte, after uint64, fn func(n uint64, key, raw []byte) bool) {
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return
	}
	c := b.Cursor()
	for k, v := c.Seek(number(after)); k != nil; k, v = c.Next() {
		n, ok := parseNumber(k)
		if !ok || n <= after {
			continue
		}
		if !fn(n, k, v) {
			return
		}
	}
}

// LastSequence is the sequence of the sandbox's newest event; 0 if it has none.
func (t *Tx) LastSequence(sandboxID string) uint64 { return t.edge(bucketEvents(sandboxID), true) }

// FirstSequence is the sequence of the sandbox's oldest kept event; 0 if it has none.
func (t *Tx) FirstSequence(sandboxID string) uint64 { return t.edge(bucketEvents(sandboxID), false) }

// LastPosition is the highest position that was ever given; 0 before the first event.
func (t *Tx) LastPosition() uint64 {
	b := t.bolt.Bucket(bucketEventOrder)
	if b == nil {
		return 0
	}
	return b.Sequence()
}

// FirstPosition is the position of the oldest kept event; 0 if there is none.
func (t *Tx) FirstPosition() uint64 { return t.edge(bucketEventOrder, false) }

// NewestPosition is the position of the newest kept event; 0 if there is none.
func (t *Tx) NewestPosition() uint64 { return t.edge(bucketEventOrder, true) }

// edge returns the highest or lowest numeric key; 0 if there is none.
func (t *Tx) edge(bucket []byte, highest bool) uint64 {
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return 0
	}
	c := b.Cursor()
	start, next := c.First, c.Next
	if highest {
		start, next = c.Last, c.Prev
	}
	for k, _ := start(); k != nil; k, _ = next() {
		if n, ok := parseNumber(k); ok {
			return n
		}
	}
	return 0
}
