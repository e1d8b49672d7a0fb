package store

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// EventPage is a contiguous part of one sandbox's history.
type EventPage struct {
	// Events are ordered by sequence. A gap between two sequences means that
	// events were removed or cannot be read.
	Events []*agboxv1.SandboxEvent
	// Bad are the records of this page that cannot be read.
	Bad []*RecordError
	// Next is the sequence of the last record of this page, readable or not. Pass
	// it as "after" to get the next page. On an empty page it equals the given "after".
	Next uint64
	// More is true if records follow this page.
	More bool
	// Trimmed says what was removed from this history.
	Trimmed Trimmed
}

// OrderedEvent is an event with its position among the events of all sandboxes.
type OrderedEvent struct {
	// Position counts from 1. A gap between two positions means that events were
	// removed or cannot be read.
	Position uint64
	Event    *agboxv1.SandboxEvent
}

// OrderedPage is a contiguous part of the events of all sandboxes.
type OrderedPage struct {
	// Events are ordered by commit.
	Events []OrderedEvent
	// Bad are the records of this page that cannot be read.
	Bad []*RecordError
	// Next is the position of the last record of this page, readable or not. On
	// an empty page it equals the given "after".
	Next uint64
	// More is true if records follow this page.
	More bool
	// Trimmed says what was removed from the order of all events.
	Trimmed Trimmed
}

// Trimmed says what was removed from a stream of events. A reader whose cursor
// is at UpTo or beyond has missed nothing.
type Trimmed struct {
	// UpTo is the highest sequence or position that was removed; 0 if none was.
	UpTo uint64
	// Count is how many events were ever removed. A reader compares it with an
	// earlier value to detect removals in between.
	Count uint64
}

// AppendEvent adds the event to its sandbox's history and to those of all sandboxes.
// sandbox_id and event_type must be set. AppendEvent sets sequence, position and event_id
// in ev and clears replay and snapshot.
func (t *Tx) AppendEvent(ev *agboxv1.SandboxEvent) error {
	sandboxID := ev.GetSandboxId()
	if !ids.Valid(sandboxID) {
		return invalidID("sandbox", sandboxID)
	}
	if ev.GetEventType() == agboxv1.EventType_EVENT_TYPE_UNSPECIFIED {
		return fmt.Errorf("event of sandbox %q without a type: %w", sandboxID, errdefs.ErrInvalidArgument)
	}
	order, err := t.write(bucketEventOrder)
	if err != nil {
		return err
	}
	position, err := order.NextSequence()
	if err != nil {
		return err
	}
	ev.Sequence, ev.Position = t.LastSequence(sandboxID)+1, position
	ev.EventId = fmt.Sprintf("%s/%d", sandboxID, ev.Sequence)
	ev.Replay, ev.Snapshot = false, false
	if err := t.putMessage(bucketEvents(sandboxID), number(ev.Sequence), ev); err != nil {
		return err
	}
	if execID := ev.GetExec().GetExecId(); execID != "" {
		if err := t.put(bucketExecLastEvent(sandboxID), []byte(execID), number(ev.Sequence)); err != nil {
			return err
		}
	}
	return putRef(order, position, sandboxID, ev.Sequence)
}

// putOrder adds an entry at the next position. The bucket's own sequence counts
// positions, so the position of a removed event is never used again.
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

// Events returns the events of a sandbox after the given sequence. A page has at
// most limit records; a limit below 1 counts as 1. It ends before the record
// whose encoding would exceed maxBytes in total (0: no bound), but always has
// one record if there is any. A sandbox without events has an empty page.
func (t *Tx) Events(sandboxID string, after uint64, limit, maxBytes int) EventPage {
	page := EventPage{Trimmed: t.Trimmed(sandboxID)}
	bucket := bucketEvents(sandboxID)
	records := readPage(t, bucket, after, limit, maxBytes, func(_ uint64, key, raw []byte) (*agboxv1.SandboxEvent, error) {
		ev := &agboxv1.SandboxEvent{}
		return ev, decode(bucket, key, raw, ev)
	})
	page.Events, page.Bad, page.Next, page.More = records.good, records.bad, records.next, records.more
	return page
}

// NewestEvent returns the newest event of a sandbox that fits, with a sequence of at
// most upTo. Events that cannot be read are passed over. It is errdefs.ErrNotFound if
// there is none.
func (t *Tx) NewestEvent(sandboxID string, upTo uint64, fits func(*agboxv1.SandboxEvent) bool) (*agboxv1.SandboxEvent, error) {
	bucket := bucketEvents(sandboxID)
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return nil, notFound("events of sandbox", sandboxID)
	}
	c := b.Cursor()
	k, v := c.Seek(number(upTo))
	if k == nil {
		k, v = c.Last()
	}
	for ; k != nil; k, v = c.Prev() {
		ev := &agboxv1.SandboxEvent{}
		if n, ok := parseNumber(k); !ok || n > upTo || decode(bucket, k, v, ev) != nil {
			continue
		}
		if fits(ev) {
			return ev, nil
		}
	}
	return nil, notFound("fitting event of sandbox", sandboxID)
}

// OrderedEvents returns up to limit events of all sandboxes after the given
// position. A limit below 1 counts as 1.
func (t *Tx) OrderedEvents(after uint64, limit int) OrderedPage {
	page := OrderedPage{Trimmed: t.OrderTrimmed()}
	records := readPage(t, bucketEventOrder, after, limit, 0, func(position uint64, key, raw []byte) (OrderedEvent, error) {
		ev, err := t.referred(key, raw)
		return OrderedEvent{Position: position, Event: ev}, err
	})
	page.Events, page.Bad, page.Next, page.More = records.good, records.bad, records.next, records.more
	return page
}

// records is a contiguous part of a bucket with numeric keys.
type records[E any] struct {
	good []E
	bad  []*RecordError
	next uint64
	more bool
}

// readPage reads records after the given number. It ends before the record that would be
// more than limit, or whose encoding would exceed maxBytes in total (0: no bound), but
// always has one record if there is any.
func readPage[E any](t *Tx, bucket []byte, after uint64, limit, maxBytes int, read func(n uint64, key, raw []byte) (E, error)) records[E] {
	page := records[E]{next: after}
	size := 0
	t.eachNumber(bucket, after, func(n uint64, key, raw []byte) bool {
		count := len(page.good) + len(page.bad)
		if count > 0 && (count >= limit || maxBytes > 0 && size+len(raw) > maxBytes) {
			page.more = true
			return false
		}
		size += len(raw)
		page.next = n
		if record, err := read(n, key, raw); err != nil {
			page.bad = append(page.bad, recordError(bucket, key, err))
		} else {
			page.good = append(page.good, record)
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

// eachNumber calls fn for each numeric key above after, in ascending order,
// until fn returns false. It skips keys that are not numbers.
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

// FirstSequence is the sequence of the oldest event that the sandbox still has; 0 if it has none.
func (t *Tx) FirstSequence(sandboxID string) uint64 { return t.edge(bucketEvents(sandboxID), false) }

// LastPosition is the highest position ever used, also if that event was
// removed; 0 before the first event.
func (t *Tx) LastPosition() uint64 {
	b := t.bolt.Bucket(bucketEventOrder)
	if b == nil {
		return 0
	}
	return b.Sequence()
}

// FirstPosition is the position of the oldest event that is still stored; 0 if there is none.
func (t *Tx) FirstPosition() uint64 { return t.edge(bucketEventOrder, false) }

// NewestPosition is the position of the newest event that is still stored; 0 if there is none.
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
