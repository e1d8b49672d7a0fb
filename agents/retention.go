package agents

import (
	"reflect"
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TrimPart is how many events are removed together at most.
const TrimPart = 256

// Trim returns the sequences of events without which Fold computes the same record. events are
// all that are left of one agent, in their order. The first one, the newest keep (at least one)
// and those since a time stay. The parts have at most TrimPart sequences each, and the record is
// the same after each part in turn, so a crash may leave the others.
//
// An event of an agent says one part of what is true of it; later ones repeat or replace most of
// that. Which ones do is not listed here: it is tried, so that a new type of event needs no
// rule. From the newest candidates to the oldest, so a try folds little besides what stays.
func Trim(events []*agboxv1.AgentEvent, keep int, since time.Time) (parts [][]uint64) {
	n := max(0, len(events)-max(1, keep))
	for n > 0 && !events[n-1].GetOccurredAt().AsTime().Before(since) {
		n--
	}
	t := trimming{events: events, before: make([]Record, n+1), stays: slices.Clone(events[n:])}
	slices.Reverse(t.stays)
	for i, ev := range events[:n] {
		t.before[i+1] = Fold(t.before[i], ev)
	}
	t.want = t.without(n)
	for end := n; end > 1; end = max(1, end-TrimPart) {
		t.try(max(1, end-TrimPart), end)
	}
	return t.parts
}

// trimming is a Trim in progress.
type trimming struct {
	events []*agboxv1.AgentEvent
	// before has the record before each candidate.
	before []Record
	// want is the record after all events.
	want Record
	// stays are the events after the candidates that were not tried yet which are not removed,
	// newest first.
	stays []*agboxv1.AgentEvent
	parts [][]uint64
}

// without returns the record of all events before one and of those that stay.
func (t *trimming) without(start int) Record {
	r := t.before[start]
	for _, ev := range slices.Backward(t.stays) {
		r = Fold(r, ev)
	}
	return r
}

// same reports whether the events from start on, but for those that stay, are of no consequence.
// Fold may panic about a history that cannot have happened, such as the end of a pause that was
// left out: then they are not.
func (t *trimming) same(start int) (same bool) {
	defer func() { same = recover() == nil && same }()
	return reflect.DeepEqual(t.without(start), t.want)
}

// try removes those events from start to before end that can go.
func (t *trimming) try(start, end int) {
	switch {
	case t.same(start):
		t.remove(t.events[start:end])
	case end-start == 1:
		t.stays = append(t.stays, t.events[start])
	default:
		middle := (start + end) / 2
		t.try(middle, end)
		t.try(start, middle)
	}
}

func (t *trimming) remove(events []*agboxv1.AgentEvent) {
	if last := len(t.parts) - 1; last < 0 || len(t.parts[last])+len(events) > TrimPart {
		t.parts = append(t.parts, nil)
	}
	last := &t.parts[len(t.parts)-1]
	for _, ev := range events {
		*last = append(*last, ev.GetSequence())
	}
}
