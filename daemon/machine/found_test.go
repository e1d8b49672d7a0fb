package machine

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// lost is the event of an exec whose container was not there.
func lost(n uint64, id string) *agboxv1.SandboxEvent {
	ev := event(n, agboxv1.EventType_EXEC_FAILED, id)
	ev.GetExec().MayReturn = true
	return ev
}

// TestAnExecThatWasLostAndFoundIsAsIfItWasNever compares any record with the one after that. Only
// the times tell, and the sequences. A hook stays failed.
func TestAnExecThatWasLostAndFoundIsAsIfItWasNever(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was := foldAll(legalStream(t))
		is := was
		for _, id := range slices.Sorted(maps.Keys(was.Execs)) {
			if was.Execs[id].Hook != nil || was.Want != WantRunning {
				continue
			}
			is = Fold(is, lost(is.LastSequence+1, id))
			if _, runs := is.Execs[id]; runs || is.Lost[id].ID != id {
				t.Fatalf("after its loss %s is not lost: %+v", id, is)
			}
			found := event(is.LastSequence+1, agboxv1.EventType_EXEC_FOUND, id)
			if !Legal(is, found.GetEventType()) {
				t.Fatalf("nothing can be found in %+v", is)
			}
			is = Fold(is, found)
			exec := is.Execs[id]
			if !exec.Found {
				t.Fatalf("%s may be started again", id)
			}
			exec.Found = was.Execs[id].Found
			is.Execs[id] = exec
		}
		is.LastSequence, is.LastUse = was.LastSequence, was.LastUse
		if !equal(was, is) || !reflect.DeepEqual(was.Services, is.Services) {
			t.Fatalf("it was %+v, and is %+v", was, is)
		}
	})
}

// TestWhatAnOlderDaemonHasLostIsEnded: its event does not say whether the container has ended.
// Until the sandbox is READY, its events stay.
func TestWhatAnOlderDaemonHasLostIsEnded(t *testing.T) {
	old := event(4, agboxv1.EventType_EXEC_FAILED, "x")
	old.GetExec().ErrorCode = agboxv1.ErrorReason_EXEC_LOST.String()
	events := []*agboxv1.SandboxEvent{event(1, accepted, ""), event(2, ready, ""), event(3, started, "x"), old, event(5, failed, ""), event(6, resume, "")}
	r := foldAll(events)
	if exec, lost := r.Lost["x"]; !lost || exec.MayReturn {
		t.Errorf("lost are %v, want the exec, which may not return", r.Lost)
	}
	if r = Fold(r, event(7, agboxv1.EventType_EXEC_FOUND, "x")); len(r.Execs) != 0 || len(r.Lost) != 1 {
		t.Errorf("found are %v", r.Execs)
	}
	rules := Retention{KeepExecs: time.Second, MaxExecs: 1, MaxEvents: 1}
	if got := text(historyOf(append(events, event(7, started, "y"), event(8, finished, "y"))...).Trim(rules, allRecorded, t0.Add(time.Hour))); got != "x[] y[]" {
		t.Errorf("%q goes before the sandbox is READY", got)
	}
	if r = Fold(r, event(8, ready, "")); len(r.Lost) != 0 {
		t.Errorf("READY, lost are %v", r.Lost)
	}
}

// TestTheHookOfAServiceWaitsForWhatWasLost: it may be one that was lost.
func TestTheHookOfAServiceWaitsForWhatWasLost(t *testing.T) {
	rules := rules
	rules.Services = []ServiceRule{{Name: "db", Required: true, Hooks: 1}}
	for name, r := range map[string]Record{
		"PENDING": Fold(stream(accepted, ready, failed, resume), dbEvent(5, serviceStarted, 1)),
		"READY":   Fold(stream(accepted, ready), dbEvent(3, serviceStarted, 1)),
	} {
		o := Observation{
			Looked: true, Primary: primary(runtime.StateRunning), StartedAt: t0, Connected: true,
			Services: map[string]ServiceSeen{"db": {Container: primary(runtime.StateRunning), Started: 1}},
		}
		now := t0.Add(20 * time.Second)
		if step := Next(r, o, rules, now); step.Do != RunHook {
			t.Fatalf("%s: without anything lost: %s, want its hook", name, step.Do)
		}
		o.LostDue = true
		if step := Next(r, o, rules, now); step.Do != FindExecs {
			t.Errorf("%s: %s before what was lost is found", name, step.Do)
		}
		o.Connected, o.ConnectFailed = false, true
		if step := Next(r, o, rules, now); step.Do == RunHook || step.Do == FindExecs {
			t.Errorf("%s: %s without a link", name, step.Do)
		}
	}
}

func TestTheResultOfAHookIsNotFound(t *testing.T) {
	begun := event(2, started, "hook")
	begun.GetExec().Hook = new(agboxv1.HookRef)
	r := Fold(Fold(Fold(stream(accepted), begun), lost(3, "hook")), event(4, agboxv1.EventType_EXEC_FOUND, "hook"))
	if exec, runs := r.Execs["hook"]; !runs || exec.Hook != nil || r.PostCreate.Failure == nil {
		t.Errorf("the record is %+v, want the command running and its failure", r)
	}
	if r = Fold(r, event(5, finished, "hook")); r.PostCreate.Done != 0 || r.PostCreate.Failure == nil {
		t.Errorf("after its end the record is %+v", r)
	}
}

// TestExecsAreFoundUntilTheSandboxIsReady: from then on others may do their work, and retention
// may remove their events.
func TestExecsAreFoundUntilTheSandboxIsReady(t *testing.T) {
	events := []*agboxv1.SandboxEvent{
		event(1, accepted, ""), event(2, ready, ""), event(3, started, "x"), event(4, started, "y"), lost(5, "x"), lost(6, "y"), event(7, failed, ""),
	}
	rules, later := Retention{KeepExecs: time.Second, MaxExecs: 1, MaxEvents: 1}, t0.Add(time.Hour)
	if got := text(historyOf(events...).Trim(rules, allRecorded, later)); got != "x[] y[]" {
		t.Errorf("%q goes of what may be found", got)
	}
	events = append(events, event(8, resume, ""), event(9, agboxv1.EventType_EXEC_FOUND, "y"))
	if got := text(historyOf(events...).Trim(rules, allRecorded, later)); got != "x[]" {
		t.Errorf("%q goes while one was found and runs", got)
	}
	events = append(events, event(10, ready, ""), event(11, finished, "y"))
	if got := text(historyOf(events...).Trim(rules, allRecorded, later)); got != "x[3 5] y[]" {
		t.Errorf("%q goes when the sandbox is READY", got)
	}
	if r := foldAll(events); len(r.Lost) != 0 || Legal(r, agboxv1.EventType_EXEC_FOUND) {
		t.Errorf("in %+v an exec may be found", r)
	}
}
