package machine

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func serviceEvent(n uint64, name string) *agboxv1.SandboxEvent {
	ev := event(n, serviceReady, "")
	ev.Details = &agboxv1.SandboxEvent_Service{Service: &agboxv1.ServiceEventDetails{Name: name}}
	return ev
}

func historyOf(events ...*agboxv1.SandboxEvent) *History {
	h := new(History)
	for _, ev := range events {
		h.Take(ev)
	}
	return h
}

// execsOf is a sandbox with execs x1, x2, ... that each start and end, one event a second.
func execsOf(n int) []*agboxv1.SandboxEvent {
	events := []*agboxv1.SandboxEvent{event(1, accepted, ""), event(2, ready, "")}
	for i := range n {
		id := fmt.Sprintf("x%d", i+1)
		events = append(events, event(uint64(3+2*i), started, id), event(uint64(4+2*i), finished, id))
	}
	return events
}

func allRecorded(string) bool { return true }

// text formats a Trim as "exec:sequences" by part.
func text(trim Trim) string {
	var parts []string
	for _, p := range trim.Parts {
		parts = append(parts, fmt.Sprintf("%s%v", p.ExecID, p.Events))
	}
	return strings.Join(parts, " ")
}

// generous removes nothing.
var generous = Retention{KeepExecs: 24 * time.Hour, MaxExecs: 1000, MaxEvents: 10000}

func TestExecsAreKeptForTheirTimeAndNotLonger(t *testing.T) {
	h := historyOf(execsOf(3)...) // they end at t0+4s, 6s, 8s
	for after, want := range map[time.Duration]struct {
		gone string
		due  time.Duration
	}{
		4*time.Second - 1: {"", 4 * time.Second},
		4 * time.Second:   {"x1[3 4]", 6 * time.Second},
		7 * time.Second:   {"x1[3 4] x2[5 6]", 8 * time.Second},
		// The events of the exec that ended last stay: they show the last use.
		9 * time.Second: {"x1[3 4] x2[5 6] x3[]", 0},
	} {
		trim := h.Trim(generous, allRecorded, t0.Add(24*time.Hour+after))
		if got := text(trim); got != want.gone {
			t.Errorf("after %s: %q goes, want %q", after, got, want.gone)
		}
		due := time.Time{}
		if want.due > 0 {
			due = t0.Add(24*time.Hour + want.due)
		}
		if !trim.Due.Equal(due) {
			t.Errorf("after %s: more is due at %s, want %s", after, trim.Due, due)
		}
	}
}

func TestTheLastUseOutlivesItsExec(t *testing.T) {
	events := execsOf(3)
	trim := historyOf(events...).Trim(Retention{KeepExecs: time.Second, MaxExecs: 1, MaxEvents: 1}, allRecorded, t0.Add(time.Hour))
	gone := make(map[uint64]bool)
	for _, p := range trim.Parts {
		for _, sequence := range p.Events {
			gone[sequence] = true
		}
	}
	left := slices.DeleteFunc(slices.Clone(events), func(ev *agboxv1.SandboxEvent) bool { return gone[ev.GetSequence()] })
	if was, is := foldAll(events), foldAll(left); len(left) >= len(events) || !is.LastUse.Equal(was.LastUse) || is.LastSequence != was.LastSequence {
		t.Errorf("%d of %d events are left, and the last use was at %s instead of %s", len(left), len(events), is.LastUse, was.LastUse)
	}
}

func TestWhatIsLeftOfAForgottenExecGoesOnceAnotherEnded(t *testing.T) {
	without := func(id string) bool { return id != "x1" }
	if got := text(historyOf(execsOf(1)...).Trim(generous, without, t0.Add(48*time.Hour))); got != "" {
		t.Errorf("%q goes again", got)
	}
	later := execsOf(2)
	if got := text(historyOf(later...).Trim(generous, without, t0.Add(24*time.Hour+5*time.Second))); got != "[3 4]" {
		t.Errorf("%q goes, want the events of x1", got)
	}
}

func TestRunningExecsAreNeverForgotten(t *testing.T) {
	events := append(execsOf(2), event(7, started, "busy"))
	got := text(historyOf(events...).Trim(Retention{KeepExecs: time.Second, MaxExecs: 1, MaxEvents: 1}, allRecorded, t0.Add(time.Hour)))
	if got != "x1[3 4] x2[]" {
		t.Errorf("%q goes", got)
	}
}

func TestTooManyExecsGoOldestFirstButNotWithinAMinute(t *testing.T) {
	rules := generous
	rules.MaxExecs = 2
	h := historyOf(execsOf(4)...)
	young := h.Trim(rules, allRecorded, t0.Add(10*time.Second))
	if got := text(young); got != "" || !young.Due.Equal(t0.Add(64*time.Second)) {
		t.Errorf("%q goes at once, more at %s; want nothing for a minute", got, young.Due)
	}
	if got := text(h.Trim(rules, allRecorded, t0.Add(2*time.Minute))); got != "x1[3 4] x2[5 6]" {
		t.Errorf("%q goes", got)
	}
}

func TestTooManyEventsTakeTheOldestExecsAndNoLifecycle(t *testing.T) {
	rules := generous
	rules.MaxEvents = 6 // of 8
	h := historyOf(execsOf(3)...)
	if got := text(h.Trim(rules, allRecorded, t0.Add(time.Hour))); got != "x1[3 4]" {
		t.Errorf("%q goes", got)
	}
	rules.MaxEvents = 1
	if got := text(h.Trim(rules, allRecorded, t0.Add(time.Hour))); got != "x1[3 4] x2[5 6]" {
		t.Errorf("%q goes; what cannot make room is kept", got)
	}
}

func TestServiceEventsAgeButTheNewestOfEachStays(t *testing.T) {
	h := historyOf(event(1, accepted, ""), serviceEvent(2, "db"), serviceEvent(3, "cache"), serviceEvent(4, "db"), serviceEvent(5, "db"))
	if got := text(h.Trim(generous, allRecorded, t0.Add(48*time.Hour))); got != "[2] [4]" {
		t.Errorf("%q goes", got)
	}
}

// TestFailedAttemptsToStartMakeRoomForTheUser: they may be many. The first failure and the newest
// attempt stay, because the record needs them.
func TestFailedAttemptsToStartMakeRoomForTheUser(t *testing.T) {
	events := execsOf(1) // up to 4
	next := func(types ...agboxv1.EventType) {
		for _, typ := range types {
			events = append(events, event(uint64(len(events)+1), typ, ""))
		}
	}
	next(failed, stopReq, stopped, resume, failed) // 8 follows no failure
	for range 3 {
		next(resume, preparing, failed) // from 10, 13 and 16 on
	}
	next(resume)
	h := historyOf(events...)
	for _, row := range []struct {
		name  string
		rules Retention
		after time.Duration
		want  string
	}{
		{"young", generous, time.Hour, ""},
		{"too many", Retention{KeepExecs: 24 * time.Hour, MaxExecs: 1000, MaxEvents: 14}, time.Hour, "[10 11 12] [13 14 15]"},
		{"too many, young", Retention{KeepExecs: 24 * time.Hour, MaxExecs: 1000, MaxEvents: 14}, time.Minute, ""},
		{"too many execs", Retention{KeepExecs: 24 * time.Hour, MaxExecs: 0, MaxEvents: 14}, time.Hour, "x1[] [10 11 12] [13 14 15]"},
		{"too many of others", Retention{KeepExecs: 24 * time.Hour, MaxExecs: 1000, MaxEvents: 1}, time.Hour, "[10 11 12] [13 14 15] [16 17 18]"},
		{"too old", generous, 25 * time.Hour, "x1[] [10 11 12] [13 14 15] [16 17 18]"},
	} {
		if got := text(h.Trim(row.rules, allRecorded, t0.Add(row.after))); got != row.want {
			t.Errorf("%s: %q goes; want %q", row.name, got, row.want)
		}
	}
	for _, between := range []agboxv1.EventType{stopReq, copied, started} {
		h := historyOf(event(1, accepted, ""), event(2, failed, ""), event(3, resume, ""), event(4, between, ""), event(5, failed, ""), event(6, resume, ""))
		if got := text(Trim{Parts: h.All()}); strings.Contains(got, "3") {
			t.Errorf("with %s in it, the attempt goes: %q", between, got)
		}
	}
}

func TestAgeGoesByTheSequenceWhenTheClockJumps(t *testing.T) {
	events := execsOf(2)
	for _, ev := range events[2:4] { // x1 ran while the clock was a year ahead
		ev.OccurredAt.Seconds += 365 * 24 * 3600
	}
	if got := text(historyOf(events...).Trim(generous, allRecorded, t0.Add(25*time.Hour))); got != "x1[3 4] x2[]" {
		t.Errorf("%q goes", got)
	}
}

func TestAllOfADeletedSandboxAges(t *testing.T) {
	h := historyOf(append(execsOf(2), serviceEvent(7, "db"))...)
	if got := text(Trim{Parts: h.All()}); got != "x1[3 4] x2[5 6] [7]" {
		t.Errorf("%q", got)
	}
}

// TestTrimmingNeverChangesTheState folds the rest of any trimmed stream.
func TestTrimmingNeverChangesTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := legalStream(t)
		rules := Retention{
			KeepExecs: time.Duration(rapid.IntRange(1, 40).Draw(t, "keep")) * time.Second,
			MaxExecs:  rapid.IntRange(1, 5).Draw(t, "execs"), MaxEvents: rapid.IntRange(1, 40).Draw(t, "events"),
		}
		now := t0.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "now")) * time.Second)
		was := foldAll(events)
		left := slices.Clone(events)
		for range 2 { // the second time from the result of the first
			trim := historyOf(left...).Trim(rules, allRecorded, now)
			for _, p := range trim.Parts {
				if _, running := was.Execs[p.ExecID]; running {
					t.Fatalf("the running exec %s goes", p.ExecID)
				}
				left = slices.DeleteFunc(left, func(ev *agboxv1.SandboxEvent) bool { return slices.Contains(p.Events, ev.GetSequence()) })
			}
		}
		is := foldAll(left)
		if is.State != was.State || is.Want != was.Want || is.LastSequence != was.LastSequence || !is.LastUse.Equal(was.LastUse) ||
			!is.StateChangedAt.Equal(was.StateChangedAt) || is.PendingSequence != was.PendingSequence || len(is.Execs) != len(was.Execs) || len(is.Lost) != len(was.Lost) || !reflect.DeepEqual(is.Services, was.Services) || !reflect.DeepEqual(is.Prepare, was.Prepare) || !is.FailedSince.Equal(was.FailedSince) {
			t.Fatalf("was %+v, is %+v", was, is)
		}
	})
}

// What a pool has prepared is known for as long as the sandbox of somebody is not READY.
func TestWhatWasPreparedAheadIsNotForgotten(t *testing.T) {
	var events []*agboxv1.SandboxEvent
	hook := func(id string, ref *agboxv1.HookRef) {
		for _, typ := range []agboxv1.EventType{started, finished} {
			ev := event(uint64(len(events)+1), typ, id)
			ev.GetExec().Hook = ref
			events = append(events, ev)
		}
	}
	events = append(events, ahead(1))
	hook("prepare", &agboxv1.HookRef{Prepare: true})
	events = append(events, event(4, ready, ""), event(5, accepted, ""))
	hook("created", new(agboxv1.HookRef))
	for _, p := range historyOf(events...).Trim(generous, allRecorded, t0.Add(25*time.Hour)).Parts {
		events = slices.DeleteFunc(events, func(ev *agboxv1.SandboxEvent) bool { return slices.Contains(p.Events, ev.GetSequence()) })
	}
	if r := foldAll(events); r.Prepare.Done != 1 || r.PostCreate.Done != 1 {
		t.Errorf("the record is %+v", r)
	}
}

func TestAnExecCountsAsUseHoweverItEnds(t *testing.T) {
	idle := Rules{IdleTTL: time.Minute}
	up := Observation{Looked: true, Leftovers: true, Primary: primary("running"), Connected: true}
	for _, end := range []agboxv1.EventType{finished, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED} {
		r := Fold(Fold(stream(accepted, ready), event(3, started, "x")), event(500, end, "x"))
		due := t0.Add(500*time.Second + time.Minute)
		if step := Next(r, up, idle, due.Add(-time.Second)); step.Do != Rest || !step.Wake.Equal(due) {
			t.Errorf("%s: %s, wake %s; want rest until %s", end, step.Do, step.Wake, due)
		}
		if step := Next(r, up, idle, due); step.Event.GetEventType() != stopReq {
			t.Errorf("%s: when due, Next says %s", end, step.Do)
		}
	}
}
