package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// storedEvents lists the positions and ids of all stored events.
func storedEvents(tx *Tx) string {
	var list []string
	page := tx.OrderedEvents(0, 100)
	for _, ev := range page.Events {
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
		if len(page.Events) != 1 || len(page.Bad) != 0 || page.Events[0].Event.GetSandboxId() != "other" {
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
