package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAppendingSetsTheCursorAndClearsReplayAndSnapshot(t *testing.T) {
	s := newStore(t)
	ev := event("box", agboxv1.EventType_SANDBOX_READY)
	ev.Sequence, ev.EventId, ev.Replay, ev.Snapshot = 99, "wrong", true, true
	mustUpdate(t, s, func(tx *Tx) error { return tx.AppendEvent(ev) })
	if ev.GetSequence() != 1 || ev.GetEventId() != "box/1" || ev.GetReplay() || ev.GetSnapshot() || ev.GetPosition() != 1 {
		t.Fatalf("event %v", ev)
	}
	mustView(t, s, func(tx *Tx) {
		if got, err := tx.Event("box", 1); err != nil || !proto.Equal(got, ev) {
			t.Fatalf("stored %v, %v", got, err)
		}
	})
}

func TestAnEventWithoutATypeIsRefused(t *testing.T) {
	s := newStore(t)
	if err := s.Update(t.Context(), appendEvents(event("box", 0))); !errdefs.IsInvalidArgument(err) {
		t.Fatalf("error %v", err)
	}
}

func TestTheNewestEventThatFitsIsFoundFromTheEnd(t *testing.T) {
	s := newStore(t)
	const ready, failed = agboxv1.EventType_SANDBOX_READY, agboxv1.EventType_SANDBOX_FAILED
	mustUpdate(t, s, appendEvents(event("box", ready), event("box", failed), event("box", ready), event("box", failed)))
	mustView(t, s, func(tx *Tx) {
		for _, c := range []struct {
			upTo uint64
			typ  agboxv1.EventType
			want uint64
		}{{4, failed, 4}, {99, failed, 4}, {4, ready, 3}, {2, ready, 1}, {3, failed, 2}, {1, failed, 0}, {0, ready, 0}} {
			got, err := tx.NewestEvent("box", c.upTo, func(ev *agboxv1.SandboxEvent) bool { return ev.GetEventType() == c.typ })
			if got.GetSequence() != c.want || (c.want == 0) != errdefs.IsNotFound(err) {
				t.Errorf("the newest %s up to %d is %v (%v), want %d", c.typ, c.upTo, got, err, c.want)
			}
		}
		if _, err := tx.NewestEvent("nobody", 1, func(*agboxv1.SandboxEvent) bool { return true }); !errdefs.IsNotFound(err) {
			t.Errorf("of nobody: %v", err)
		}
	})
}

// TestADroppedHistoryLeavesNothingInTheOrderOfAll: the first event does not say where it is, the
// entry of the second cannot be read, and the third claims the place of another sandbox's event.
func TestADroppedHistoryLeavesNothingInTheOrderOfAll(t *testing.T) {
	s := newStore(t)
	first, third, other := event("box", agboxv1.EventType_SANDBOX_READY), event("box", agboxv1.EventType_SANDBOX_STOPPED), event("other", agboxv1.EventType_SANDBOX_READY)
	mustUpdate(t, s, appendEvents(first, event("box", agboxv1.EventType_SANDBOX_FAILED), third, other))
	first.Position, third.Position = 0, other.GetPosition()
	mustUpdate(t, s, func(tx *Tx) error {
		return errors.Join(tx.putMessage(bucketEvents("box"), number(1), first), tx.putMessage(bucketEvents("box"), number(3), third), tx.put(bucketEventOrder, number(2), []byte("\xff")))
	})
	mustUpdate(t, s, func(tx *Tx) error { return tx.DropSandbox("box") })
	mustView(t, s, func(tx *Tx) {
		left := tx.OrderedEvents(0, 10)
		if len(left.Records) != 1 || !proto.Equal(left.Records[0].Event, other) || len(left.Bad) > 0 {
			t.Errorf("left: %v, damaged: %v", left.Records, left.Bad)
		}
	})
}

func TestAPageIsBoundedInBytesButNeverEmpty(t *testing.T) {
	s := newStore(t)
	long := event("box", agboxv1.EventType_SANDBOX_FAILED)
	long.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{
		Reason: strings.Repeat("because ", 1000),
	}}
	mustUpdate(t, s, appendEvents(proto.CloneOf(long), proto.CloneOf(long), proto.CloneOf(long)))
	mustView(t, s, func(tx *Tx) {
		for maxBytes, want := range map[int]int{1: 1, 8000: 1, 17000: 2, 1 << 20: 3, 0: 3} {
			page := tx.Events("box", 0, 10, maxBytes)
			if len(page.Records) != want || page.More != (want < 3) || page.Next != uint64(want) {
				t.Errorf("%d bytes: %d events, more %v, next %d", maxBytes, len(page.Records), page.More, page.Next)
			}
		}
	})
}

// model is the reference implementation that the store must match.
type model struct {
	store  *Store
	order  []*agboxv1.SandboxEvent
	boxes  map[string][]*agboxv1.SandboxEvent
	latest map[string]uint64 // sandbox and exec -> sequence of its newest event
}

// Append adds several events in one update, which sometimes fails.
func (m *model) Append(t *rapid.T) {
	fails := rapid.IntRange(0, 4).Draw(t, "fails") == 0
	var evs []*agboxv1.SandboxEvent
	for range rapid.IntRange(1, 4).Draw(t, "events") {
		box := rapid.SampledFrom([]string{"a", "b", "a.b"}).Draw(t, "box")
		exec := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "exec")
		ev := event(box, agboxv1.EventType_SANDBOX_PREPARING)
		if exec != "" {
			ev = execEvent(box, exec, agboxv1.EventType_EXEC_STARTED)
		}
		evs = append(evs, ev)
	}
	err := m.store.Update(context.Background(), func(tx *Tx) error {
		if err := appendEvents(evs...)(tx); err != nil || !fails {
			return err
		}
		return errRefused
	})
	if (err != nil) != fails {
		t.Fatalf("update: %v", err)
	}
	if fails {
		return
	}
	for _, ev := range evs {
		box := ev.GetSandboxId()
		m.order = append(m.order, ev)
		m.boxes[box] = append(m.boxes[box], ev)
		if exec := ev.GetExec().GetExecId(); exec != "" {
			m.latest[box+" "+exec] = uint64(len(m.boxes[box]))
		}
	}
}

// Page reads one sandbox in pages of any size, starting anywhere.
func (m *model) Page(t *rapid.T) {
	box := rapid.SampledFrom([]string{"a", "b", "a.b"}).Draw(t, "box")
	want := m.boxes[box]
	after := rapid.IntRange(0, len(want)+1).Draw(t, "after")
	limit := rapid.IntRange(0, 5).Draw(t, "limit")
	maxBytes := rapid.IntRange(0, 100).Draw(t, "maxBytes")
	want = want[min(after, len(want)):]
	m.read(t, func(tx *Tx) {
		if tx.LastSequence(box) != uint64(len(m.boxes[box])) {
			t.Fatalf("last sequence of %s is %d", box, tx.LastSequence(box))
		}
		for next, more := uint64(after), true; more; {
			page := tx.Events(box, next, limit, maxBytes)
			if len(page.Records) > max(limit, 1) || len(page.Records) > len(want) || len(page.Records) == 0 && len(want) > 0 {
				t.Fatalf("page of %d, limit %d, %d left", len(page.Records), limit, len(want))
			}
			for i, ev := range page.Records {
				if !proto.Equal(ev, want[i]) {
					t.Fatalf("got %v, want %v", ev, want[i])
				}
			}
			want, next, more = want[len(page.Records):], page.Next, page.More
		}
	})
	if len(want) > 0 {
		t.Fatalf("%d events never came", len(want))
	}
}

// PageInOrder reads all sandboxes in pages of any size, starting anywhere.
func (m *model) PageInOrder(t *rapid.T) {
	after := rapid.IntRange(0, len(m.order)+1).Draw(t, "after")
	limit := rapid.IntRange(1, 5).Draw(t, "limit")
	want := m.order[min(after, len(m.order)):]
	m.read(t, func(tx *Tx) {
		if tx.LastPosition() != uint64(len(m.order)) || tx.FirstPosition() != uint64(min(1, len(m.order))) {
			t.Fatalf("positions %d to %d", tx.FirstPosition(), tx.LastPosition())
		}
		for next, more := uint64(after), true; more; {
			page := tx.OrderedEvents(next, limit)
			for _, ev := range page.Records {
				if ev.Position != next+1 || !proto.Equal(ev.Event, want[0]) {
					t.Fatalf("got %v, want %v", ev, want[0])
				}
				next, want = ev.Position, want[1:]
			}
			more = page.More
		}
	})
	if len(want) > 0 {
		t.Fatalf("%d events never came", len(want))
	}
}

// Check compares the index of newest events with the model.
func (m *model) Check(t *rapid.T) {
	m.read(t, func(tx *Tx) {
		for _, box := range []string{"a", "b", "a.b"} {
			for _, exec := range []string{"x", "y"} {
				ev, err := tx.ExecLastEvent(box, exec)
				if want := m.latest[box+" "+exec]; ev.GetSequence() != want || (err == nil) != (want > 0) {
					t.Fatalf("%s in %s ends with %d (%v), want %d", exec, box, ev.GetSequence(), err, want)
				}
			}
		}
	})
}

func (m *model) read(t *rapid.T, fn func(tx *Tx)) {
	if err := m.store.View(context.Background(), func(tx *Tx) error { fn(tx); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestEventsPageLikeTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "agbox-store-")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(filepath.Clean(dir)) }()
		s, err := Open(context.Background(), testOptions(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		m := &model{store: s, boxes: map[string][]*agboxv1.SandboxEvent{}, latest: map[string]uint64{}}
		t.Repeat(map[string]func(*rapid.T){
			"append": m.Append, "page": m.Page, "order": m.PageInOrder, "": m.Check,
		})
	})
}

// storedEvents lists the positions and ids of all stored events.
func storedEvents(tx *Tx) string {
	var list []string
	page := tx.OrderedEvents(0, 100)
	for _, ev := range page.Records {
		list = append(list, fmt.Sprint(ev.Position, "=", ev.Event.GetEventId()))
	}
	return fmt.Sprintf("%v, %d bad", list, len(page.Bad))
}

// threeExecs makes a sandbox with three execs, and an event of another sandbox
// between theirs.
func threeExecs(t *testing.T) *Store {
	s := newStore(t)
	mustUpdate(t, s, func(tx *Tx) error {
		for _, x := range []string{"x1", "x2", "x3"} {
			err := errors.Join(tx.ReserveExec(x, testTime), tx.PutExecConfig("box", x, &agboxv1.CreateExecRequest{}))
			if err != nil {
				return err
			}
		}
		return appendEvents(
			event("box", agboxv1.EventType_SANDBOX_ACCEPTED),
			execEvent("box", "x1", agboxv1.EventType_EXEC_STARTED),
			execEvent("box", "x2", agboxv1.EventType_EXEC_STARTED),
			event("other", agboxv1.EventType_SANDBOX_ACCEPTED),
			execEvent("box", "x1", agboxv1.EventType_EXEC_FINISHED),
			execEvent("box", "x3", agboxv1.EventType_EXEC_STARTED))(tx)
	})
	return s
}

func TestTheIDsOfForgottenExecsStayReserved(t *testing.T) {
	s := threeExecs(t)
	mustUpdate(t, s, func(tx *Tx) error { return tx.ForgetExecs("box", "x1", "x3") })
	mustView(t, s, func(tx *Tx) {
		if ids := tx.ExecIDs("box", "", 10); !slices.Equal(ids, []string{"x2"}) {
			t.Errorf("execs %v", ids)
		}
		if _, err := tx.ExecLastEvent("box", "x1"); !errdefs.IsNotFound(err) {
			t.Errorf("last event of x1: %v", err)
		}
		if _, ok := tx.ExecReserved("x1"); !ok {
			t.Error("the id is free again")
		}
	})
}

func TestRemovingEventsRecordsItAndKeepsTheNextSequence(t *testing.T) {
	s := threeExecs(t)
	remove := func(sequences ...uint64) {
		mustUpdate(t, s, func(tx *Tx) error { return tx.RemoveEvents("box", sequences...) })
	}
	remove(2, 4, 5, 99)
	remove(2, 5)
	mustUpdate(t, s, appendEvents(event("box", agboxv1.EventType_SANDBOX_STOPPED)))
	mustView(t, s, func(tx *Tx) {
		// box/5 was the newest event of the box and stays.
		if got, want := storedEvents(tx), "[1=box/1 3=box/3 4=other/1 6=box/5 7=box/6], 0 bad"; got != want {
			t.Errorf("kept %v, want %v", got, want)
		}
		if got, want := tx.Trimmed("box"), (Trimmed{UpTo: 4, Count: 2}); got != want {
			t.Errorf("the box was trimmed %+v, want %+v", got, want)
		}
		if got, want := tx.OrderTrimmed(), (Trimmed{UpTo: 5, Count: 2}); got != want {
			t.Errorf("the order was trimmed %+v, want %+v", got, want)
		}
		if got := tx.Trimmed("other"); got != (Trimmed{}) {
			t.Errorf("the other was trimmed %+v", got)
		}
	})
}

func TestEventsWithoutAPositionAreRemovedFromTheOrderToo(t *testing.T) {
	s := threeExecs(t)
	mustUpdate(t, s, func(tx *Tx) error { // older daemons did not record positions
		for _, sequence := range []uint64{2, 4} {
			ev, err := tx.Event("box", sequence)
			if err != nil {
				return err
			}
			ev.Position = 0
			if err := tx.putMessage(bucketEvents("box"), number(sequence), ev); err != nil {
				return err
			}
		}
		return nil
	})
	mustUpdate(t, s, func(tx *Tx) error { return tx.RemoveEvents("box", 2, 3) })
	mustView(t, s, func(tx *Tx) {
		if got, want := storedEvents(tx), "[1=box/1 4=other/1 5=box/4 6=box/5], 0 bad"; got != want {
			t.Errorf("kept %v, want %v", got, want)
		}
		if got, want := tx.OrderTrimmed(), (Trimmed{UpTo: 3, Count: 2}); got != want {
			t.Errorf("the order was trimmed %+v, want %+v", got, want)
		}
	})
	mustUpdate(t, s, func(tx *Tx) error { return tx.DropSandbox("box") })
	mustView(t, s, func(tx *Tx) {
		if got, want := storedEvents(tx), "[4=other/1], 0 bad"; got != want {
			t.Errorf("kept %v, want %v", got, want)
		}
		if got, want := tx.OrderTrimmed(), (Trimmed{UpTo: 6, Count: 5}); got != want {
			t.Errorf("the order was trimmed %+v, want %+v", got, want)
		}
	})
}

func TestDroppingASandboxKeepsOnlyItsReservation(t *testing.T) {
	s := newStore(t)
	mustUpdate(t, s, func(tx *Tx) error {
		return errors.Join(
			reserve("box")(tx), tx.PutSandboxConfig("box", &agboxv1.CreateSpec{}), tx.MarkDeleted("box", testTime),
			tx.PutExecConfig("box", "x1", &agboxv1.CreateExecRequest{}), tx.ReserveExec("x1", testTime),
			appendEvents(event("other", 1), execEvent("box", "x1", agboxv1.EventType_EXEC_STARTED))(tx))
	})
	mustUpdate(t, s, func(tx *Tx) error { return tx.DropSandbox("box") })
	mustUpdate(t, s, func(tx *Tx) error { return tx.DropSandbox("box") })
	mustView(t, s, func(tx *Tx) {
		page := tx.OrderedEvents(0, 10)
		if len(page.Records) != 1 || len(page.Bad) != 0 || page.Records[0].Event.GetSandboxId() != "other" {
			t.Errorf("order %+v", page)
		}
		if tx.LastPosition() != 2 || tx.LastSequence("box") != 0 || len(tx.SandboxIDs()) != 0 {
			t.Errorf("position %d, sequence %d, ids %v", tx.LastPosition(), tx.LastSequence("box"), tx.SandboxIDs())
		}
		if got, want := tx.OrderTrimmed(), (Trimmed{UpTo: 2, Count: 1}); got != want || tx.NewestPosition() != 1 {
			t.Errorf("the order was trimmed %+v, want %+v; the newest position is %d", got, want, tx.NewestPosition())
		}
		_, deleted := tx.DeletedAt("box")
		_, exec := tx.ExecReserved("x1")
		if deleted || !exec {
			t.Errorf("deleted %v, exec reserved %v", deleted, exec)
		}
	})
	if !isReserved(t, s, "box") {
		t.Error("the id is free again")
	}
	mustUpdate(t, s, func(tx *Tx) error {
		ev := event("other", 2)
		err := tx.AppendEvent(ev)
		if ev.GetPosition() != 3 {
			t.Errorf("position %d was given twice", ev.GetPosition())
		}
		return err
	})
}
