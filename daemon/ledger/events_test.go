package ledger

import (
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

// used has a READY sandbox with ended execs. x0 has the events 3 and 4, and so on.
func used(t *testing.T, execIDs ...string) *Ledger {
	t.Helper()
	l := fresh(t)
	ready(t, l, "a")
	for _, id := range execIDs {
		if _, err := l.AcceptExec(t.Context(), request(id), "boot"); err != nil {
			t.Fatal(err)
		}
		if err := l.EndExec(t.Context(), "a", &agboxv1.ExecEventDetails{ExecId: id, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func forget(t *testing.T, l *Ledger, parts ...machine.TrimPart) {
	t.Helper()
	if err := l.Forget(t.Context(), "a", parts); err != nil {
		t.Fatal(err)
	}
}

func TestAStreamOverAHoleIsOutOfRangeUnlessItStartsFromZero(t *testing.T) {
	l := used(t, "x0", "x1", "x2")
	forget(t, l, machine.TrimPart{ExecID: "x1", Events: []uint64{5, 6}})
	for after, fine := range map[uint64]bool{0: true, 1: false, 4: false, 5: false, 6: true, 7: true, 8: true, 9: false} {
		_, err := l.OpenEvents(t.Context(), "a", after)
		if (err == nil) != fine || err != nil && !errdefs.IsOutOfRange(err) {
			t.Errorf("sequence %d: %v", after, err)
		}
		_, err = l.OpenAllEvents(t.Context(), after) // with one sandbox, positions equal sequences
		if (err == nil) != fine || err != nil && !errdefs.IsOutOfRange(err) {
			t.Errorf("position %d: %v", after, err)
		}
	}
	c, err := l.OpenEvents(t.Context(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	var seen []uint64
	for more := true; more; {
		var events []*agboxv1.SandboxEvent
		if events, more, err = l.NextEvents(t.Context(), c, 2); err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			seen = append(seen, ev.GetSequence())
		}
	}
	if len(seen) != 6 || seen[4] != 7 {
		t.Errorf("a reader from 0 saw %v", seen)
	}
}

func TestAStreamIsEndedWhenWhatLiesAheadIsRemoved(t *testing.T) {
	for name, tc := range map[string]struct {
		read int // events read before the removal of 3 and 4
		fine bool
	}{"before the hole": {2, false}, "in the hole": {3, false}, "after the hole": {4, true}} {
		t.Run(name, func(t *testing.T) {
			l := used(t, "x0", "x1")
			c, err := l.OpenEvents(t.Context(), "a", 0)
			if err != nil {
				t.Fatal(err)
			}
			all, err := l.OpenAllEvents(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := l.NextEvents(t.Context(), c, tc.read); err != nil {
				t.Fatal(err)
			}
			if _, _, err := l.NextOfAll(t.Context(), all, tc.read); err != nil {
				t.Fatal(err)
			}
			forget(t, l, machine.TrimPart{ExecID: "x0", Events: []uint64{3, 4}})
			if _, _, err := l.NextEvents(t.Context(), c, 9); (err == nil) != tc.fine || err != nil && !errdefs.IsOutOfRange(err) {
				t.Errorf("the sandbox's stream: %v", err)
			}
			if _, _, err := l.NextOfAll(t.Context(), all, 9); (err == nil) != tc.fine || err != nil && !errdefs.IsOutOfRange(err) {
				t.Errorf("the stream of all: %v", err)
			}
		})
	}
}

func TestAStreamOfADeletedSandboxThatIsDroppedSaysSo(t *testing.T) {
	l := used(t, "x0")
	gone(t, l, "a")
	c, err := l.OpenEvents(t.Context(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.NextEvents(t.Context(), c, 2); err != nil {
		t.Fatal(err)
	}
	if err := l.Drop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	events, more, err := l.NextEvents(t.Context(), c, 9)
	if err == nil {
		err = c.Dropped()
	}
	if len(events) > 0 || more || !errdefs.IsOutOfRange(err) {
		t.Errorf("%d events, more %v, error %v", len(events), more, err)
	}
	newest, err := l.OpenAllEvents(t.Context(), 0)
	if err != nil || newest.Newest != 0 || newest.Last != 6 {
		t.Errorf("of all: %+v, %v", newest, err)
	}
}

func TestALivingSandboxIsNeverDropped(t *testing.T) {
	l := used(t)
	if err := l.Drop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if sb, err := l.Past(t.Context(), "a"); err != nil || sb.State != machine.Ready {
		t.Errorf("%+v, %v", sb.Record, err)
	}
}

func TestARunningExecIsNeverForgotten(t *testing.T) {
	l := used(t, "x0")
	if _, err := l.AcceptExec(t.Context(), request("busy"), "boot"); err != nil {
		t.Fatal(err)
	}
	forget(t, l, machine.TrimPart{ExecID: "busy", Events: []uint64{5}}, machine.TrimPart{ExecID: "x0", Events: []uint64{3, 4}})
	page, err := l.Execs(t.Context(), "a", "", 9)
	if err != nil || len(page) != 1 || page[0].GetExecId() != "busy" {
		t.Errorf("execs %v, %v", page, err)
	}
}

func TestAnExecPrefixFitsOnlyWhatIsKept(t *testing.T) {
	l := used(t, "xa1", "xa2", "xb")
	forget(t, l, machine.TrimPart{ExecID: "xa1", Events: []uint64{3, 4}})
	means(t, l, agboxv1.RefKind_REF_KIND_EXEC, "xa", "xa2 PREFIX")
	for _, find := range []string{"xa1", "xa"} {
		_, err := l.FindExec(t.Context(), find)
		wantReason(t, err, agboxv1.ErrorReason_EXEC_NOT_FOUND)
	}
	_, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_EXEC, "xa1")
	wantReason(t, err, agboxv1.ErrorReason_EXEC_NOT_FOUND)
}

func TestObjectsAreOwnedByIDAndNonceWhileTheSandboxIsNotDeleted(t *testing.T) {
	l := fresh(t)
	sb := create(t, l, "a", "")
	for nonce, want := range map[string]bool{sb.Nonce: true, "other": false} {
		if owned, err := l.Owns(t.Context(), "a", nonce); err != nil || owned != want {
			t.Errorf("with nonce %q: %v, %v", nonce, owned, err)
		}
	}
	if owned, err := l.Owns(t.Context(), "unknown", sb.Nonce); err != nil || owned {
		t.Errorf("of an unknown sandbox: %v, %v", owned, err)
	}
	gone(t, l, "a")
	if owned, err := l.Owns(t.Context(), "a", sb.Nonce); err != nil || owned {
		t.Errorf("of a deleted sandbox: %v, %v", owned, err)
	}
}
