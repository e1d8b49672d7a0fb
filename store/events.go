package store

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Page is a contiguous part of records that are numbered: the events of a sandbox, an agent or
// all of them, or messages.
type Page[R any] struct {
	// Records are in the order of their numbers. A gap between two numbers means that
	// records were removed or cannot be read.
	Records []R
	// Bad are the records of this page that cannot be read.
	Bad []*RecordError
	// Next is the number of the last record of this page, readable or not. Pass
	// it as "after" to get the next page. On an empty page it equals the given "after".
	Next uint64
	// More is true if records follow this page.
	More bool
	// Trimmed says what was removed from this stream of events. Messages have none.
	Trimmed Trimmed
}

// OrderedEvent is an event with its position among the events of all sandboxes.
type OrderedEvent struct {
	// Position counts from 1. A gap between two positions means that events were
	// removed or cannot be read.
	Position uint64
	Event    *agboxv1.SandboxEvent
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

// stream is where the events of sandboxes, or those of agents, are stored: a history of each
// sandbox or agent, and the order of all events, which refers to the histories.
type stream[E placed] struct {
	// of is "sandbox" or "agent".
	of string
	// history and removed have the bucket of a history and the key of what was removed from it.
	history func(id string) []byte
	removed func(id string) []byte
	// order and allRemoved are the same for all events.
	order, allRemoved []byte
	// blank makes an event to decode into.
	blank func() E
}

// placed is an event that knows its places.
type placed interface {
	proto.Message
	GetSequence() uint64
	GetPosition() uint64
}

var sandboxEvents = stream[*agboxv1.SandboxEvent]{
	of: "sandbox", history: bucketEvents, removed: keyTrimmed, order: bucketEventOrder, allRemoved: keyAllTrimmed,
	blank: func() *agboxv1.SandboxEvent { return new(agboxv1.SandboxEvent) },
}

// append adds an event to its history and to the order of all. place sets its place in both.
func (s stream[E]) append(t *Tx, id string, typed bool, ev E, place func(sequence, position uint64)) error {
	if !ids.Valid(id) {
		return invalidID(s.of, id)
	}
	if !typed {
		return fmt.Errorf("event of %s %q without a type: %w", s.of, id, errdefs.ErrInvalidArgument)
	}
	order, err := t.write(s.order)
	if err != nil {
		return err
	}
	sequence := t.edge(s.history(id), true) + 1
	position, err := putOrder(order, id, sequence)
	if err != nil {
		return err
	}
	place(sequence, position)
	return t.putMessage(s.history(id), number(sequence), ev)
}

// putOrder adds an entry at the next position and returns that. The bucket's own sequence counts
// positions, so the position of a removed event is never used again.
func putOrder(order *bolt.Bucket, id string, sequence uint64) (position uint64, err error) {
	if position, err = order.NextSequence(); err != nil {
		return 0, err
	}
	raw, err := deterministic.Marshal(&storev1.EventRef{Id: id, Sequence: sequence})
	if err != nil {
		return 0, err
	}
	return position, order.Put(number(position), raw)
}

// page reads events of one history.
func (s stream[E]) page(t *Tx, id string, after uint64, limit, maxBytes int) Page[E] {
	page := readPage(t, s.history(id), after, limit, maxBytes, func(_ uint64, key, raw []byte) (E, error) {
		ev := s.blank()
		return ev, decode(s.history(id), key, raw, ev)
	})
	page.Trimmed = t.trimmed(s.removed(id))
	return page
}

// referred reads the event that an entry of the order points to.
func (s stream[E]) referred(t *Tx, key, raw []byte) (ev E, err error) {
	ref := &storev1.EventRef{}
	if err := decode(s.order, key, raw, ref); err != nil {
		return ev, err
	}
	ev = s.blank()
	return ev, t.message(s.history(ref.GetId()), number(ref.GetSequence()), ev)
}

// remove removes events from their history and from the order of all, but for the newest of the
// history, because the next sequence is computed from it. It ignores sequences that do not exist.
func (s stream[E]) remove(t *Tx, id string, sequences []uint64) (removed, positions []uint64, err error) {
	newest := t.edge(s.history(id), true)
	unplaced := make(map[uint64]bool)
	for _, sequence := range sequences {
		raw := t.get(s.history(id), number(sequence))
		if raw == nil || sequence == newest {
			continue
		}
		if position := s.positionOf(t, id, sequence, raw); position > 0 {
			positions = append(positions, position)
		} else {
			unplaced[sequence] = true
		}
		if err := t.remove(s.history(id), number(sequence)); err != nil {
			return nil, nil, err
		}
		removed = append(removed, sequence)
	}
	if len(unplaced) > 0 {
		positions = append(positions, s.search(t, id, unplaced)...)
	}
	return removed, positions, t.removeNumbers(s.order, positions)
}

// drop removes a history with its entries in the order of all, and records their removal there.
func (s stream[E]) drop(t *Tx, id string) error {
	var positions []uint64
	unplaced := make(map[uint64]bool)
	t.eachNumber(s.history(id), 0, func(sequence uint64, _, raw []byte) bool {
		if position := s.positionOf(t, id, sequence, raw); position > 0 {
			positions = append(positions, position)
		} else {
			unplaced[sequence] = true
		}
		return true
	})
	if len(unplaced) > 0 {
		positions = append(positions, s.search(t, id, unplaced)...)
	}
	return errors.Join(
		t.removeNumbers(s.order, positions),
		t.trim(s.allRemoved, positions),
		t.drop(s.history(id)),
		t.remove(bucketEventsTrimmed, s.removed(id)))
}

// positionOf returns 0 for an event that cannot be read, does not record its position, or records that of another event.
func (s stream[E]) positionOf(t *Tx, id string, sequence uint64, raw []byte) uint64 {
	ev, ref := s.blank(), &storev1.EventRef{}
	if proto.Unmarshal(raw, ev) != nil {
		return 0
	}
	entry := t.get(s.order, number(ev.GetPosition()))
	if entry == nil || proto.Unmarshal(entry, ref) == nil && (ref.GetId() != id || ref.GetSequence() != sequence) {
		return 0
	}
	return ev.GetPosition()
}

// search finds the positions of events of one history in the order of all. It reads the whole
// order, which only events without a readable position need: damaged ones, and those that an
// older schema wrote and a migration indexed.
func (s stream[E]) search(t *Tx, id string, sequences map[uint64]bool) (positions []uint64) {
	t.eachNumber(s.order, 0, func(position uint64, _, raw []byte) bool {
		ref := &storev1.EventRef{}
		if proto.Unmarshal(raw, ref) == nil && ref.GetId() == id && sequences[ref.GetSequence()] {
			positions = append(positions, position)
		}
		return true
	})
	return positions
}

// AppendEvent adds the event to its sandbox's history and to those of all sandboxes.
// sandbox_id and event_type must be set. AppendEvent sets sequence, position and event_id
// in ev and clears replay and snapshot.
func (t *Tx) AppendEvent(ev *agboxv1.SandboxEvent) error {
	id := ev.GetSandboxId()
	typed := ev.GetEventType() != agboxv1.EventType_EVENT_TYPE_UNSPECIFIED
	err := sandboxEvents.append(t, id, typed, ev, func(sequence, position uint64) {
		ev.Sequence, ev.Position, ev.EventId = sequence, position, fmt.Sprintf("%s/%d", id, sequence)
		ev.Replay, ev.Snapshot = false, false
	})
	if execID := ev.GetExec().GetExecId(); err == nil && execID != "" {
		return t.put(bucketExecLastEvent(id), []byte(execID), number(ev.Sequence))
	}
	return err
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
func (t *Tx) Events(sandboxID string, after uint64, limit, maxBytes int) Page[*agboxv1.SandboxEvent] {
	return sandboxEvents.page(t, sandboxID, after, limit, maxBytes)
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
func (t *Tx) OrderedEvents(after uint64, limit int) Page[OrderedEvent] {
	page := readPage(t, bucketEventOrder, after, limit, 0, func(position uint64, key, raw []byte) (OrderedEvent, error) {
		ev, err := sandboxEvents.referred(t, key, raw)
		return OrderedEvent{Position: position, Event: ev}, err
	})
	page.Trimmed = t.OrderTrimmed()
	return page
}

// readPage reads records after the given number. It ends before the record that would be
// more than limit, or whose encoding would exceed maxBytes in total (0: no bound), but
// always has one record if there is any.
func readPage[R any](t *Tx, bucket []byte, after uint64, limit, maxBytes int, read func(n uint64, key, raw []byte) (R, error)) Page[R] {
	page := Page[R]{Next: after}
	size := 0
	t.eachNumber(bucket, after, func(n uint64, key, raw []byte) bool {
		count := len(page.Records) + len(page.Bad)
		if count > 0 && (count >= limit || maxBytes > 0 && size+len(raw) > maxBytes) {
			page.More = true
			return false
		}
		size += len(raw)
		page.Next = n
		if record, err := read(n, key, raw); err != nil {
			page.Bad = append(page.Bad, recordError(bucket, key, err))
		} else {
			page.Records = append(page.Records, record)
		}
		return true
	})
	return page
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
func (t *Tx) LastPosition() uint64 { return t.highest(bucketEventOrder) }

// highest is the highest number that a bucket has ever given out; 0 before the first.
func (t *Tx) highest(bucket []byte) uint64 {
	if b := t.bolt.Bucket(bucket); b != nil {
		return b.Sequence()
	}
	return 0
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
	removed, positions, err := sandboxEvents.remove(t, sandboxID, sequences)
	if err != nil {
		return err
	}
	return errors.Join(t.trim(keyTrimmed(sandboxID), removed), t.trim(keyAllTrimmed, positions))
}

// removeNumbers removes numeric keys. The caller has collected them first: a bbolt cursor is
// invalid after a removal.
func (t *Tx) removeNumbers(bucket []byte, numbers []uint64) error {
	for _, n := range numbers {
		if err := t.remove(bucket, number(n)); err != nil {
			return err
		}
	}
	return nil
}

// trimmed reads the record of removals under key. A damaged record counts as none.
func (t *Tx) trimmed(key []byte) Trimmed {
	m := &storev1.Trimmed{}
	if err := t.message(bucketEventsTrimmed, key, m); err != nil {
		return Trimmed{}
	}
	return Trimmed{UpTo: m.GetUpTo(), Count: m.GetCount()}
}

// trim adds sequences or positions to the record of removals under key.
func (t *Tx) trim(key []byte, gone []uint64) error {
	if len(gone) == 0 {
		return nil
	}
	before := t.trimmed(key)
	return t.putMessage(bucketEventsTrimmed, key, &storev1.Trimmed{
		UpTo: max(before.UpTo, slices.Max(gone)), Count: before.Count + uint64(len(gone)),
	})
}

// Trimmed returns what was removed from a sandbox's history.
func (t *Tx) Trimmed(sandboxID string) Trimmed { return t.trimmed(keyTrimmed(sandboxID)) }

// OrderTrimmed returns what was removed from the order of all events.
func (t *Tx) OrderTrimmed() Trimmed { return t.trimmed(keyAllTrimmed) }
