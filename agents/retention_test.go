package agents

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// trimmed checks that the record is the same after each part, and returns the events that stay.
func trimmed(t interface{ Fatalf(string, ...any) }, events []*agboxv1.AgentEvent, keep int, since time.Time) []*agboxv1.AgentEvent {
	fold := func(events []*agboxv1.AgentEvent) (r Record) {
		for _, ev := range events {
			r = Fold(r, ev)
		}
		return r
	}
	want, left := fold(events), slices.Clone(events)
	for _, part := range Trim(events, keep, since) {
		if len(part) == 0 || len(part) > TrimPart {
			t.Fatalf("a part has %d events", len(part))
		}
		before := len(left)
		left = slices.DeleteFunc(left, func(ev *agboxv1.AgentEvent) bool { return slices.Contains(part, ev.GetSequence()) })
		if len(left) != before-len(part) {
			t.Fatalf("the part %v is not of these events", part)
		}
		if got := fold(left); !reflect.DeepEqual(got, want) {
			t.Fatalf("without %v the record is %+v instead of %+v", part, got, want)
		}
	}
	return left
}

func TestTrimmingNeverChangesTheRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, rules: rules(), now: t0, sandbox: SandboxMaking, accepted: map[string]bool{}}
		w.rules.ReadyStart = rapid.Bool().Draw(t, "ready at start")
		w.emit(&agboxv1.AgentEvent{AgentId: "a", Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{
			Owned: true, SandboxId: "s", Parent: "p", Lifetime: agboxv1.AgentLifetime(rapid.IntRange(1, 2).Draw(t, "lifetime")),
		}}})
		for range rapid.IntRange(0, 150).Draw(t, "moves") {
			w.interfere()
			if rapid.Bool().Draw(t, "lease") && w.r.Incarnation != nil {
				w.emit(w.lease())
			}
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				w.step()
			}
		}
		keep, since := rapid.IntRange(0, 20).Draw(t, "keep"), t0.Add(time.Duration(rapid.IntRange(-10, 5000).Draw(t, "since"))*time.Second)
		left := trimmed(t, w.log, keep, since)
		for i, ev := range w.log {
			stays := i == 0 || i >= len(w.log)-max(1, keep) || !ev.GetOccurredAt().AsTime().Before(since)
			if stays && !slices.Contains(left, ev) {
				t.Fatalf("%v was removed, with keep %d and since %v", ev, keep, since)
			}
		}
	})
}

// lease is an event about a resource, which may not be legal.
func (w *world) lease() *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:     agboxv1.AgentEventType(rapid.IntRange(20, 24).Draw(w.t, "lease event")),
		Position: uint64(len(w.log)),
		Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{
			Leases:  []*agboxv1.AgentLease{{Resource: rapid.SampledFrom([]string{"x", "y"}).Draw(w.t, "resource")}},
			Verdict: agboxv1.LeaseVerdict(rapid.IntRange(1, 3).Draw(w.t, "verdict")),
		}},
	}
}

// TestTheEventsOfALongLifeAreFew: whatever an agent does again and again, little of it says
// something that is not said by a later event.
func TestTheEventsOfALongLifeAreFew(t *testing.T) {
	r, log := Record{}, []*agboxv1.AgentEvent(nil)
	add := func(ev *agboxv1.AgentEvent) {
		ev.AgentId, ev.Sequence, ev.OccurredAt = "a", r.LastSequence+1, timestamppb.New(t0.Add(time.Duration(len(log))*time.Second))
		ev.Position = ev.Sequence
		r, log = Fold(r, ev), append(log, ev)
	}
	add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{SandboxId: "s"}}})
	lease := func(typ agboxv1.AgentEventType) {
		add(&agboxv1.AgentEvent{Type: typ, Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{Leases: []*agboxv1.AgentLease{{Resource: "x"}}}}})
	}
	for day := range uint32(20) {
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: day + 1, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: fmt.Sprint(day)}}})
		for hour := range uint64(24) {
			for _, phase := range []agboxv1.AgentState{Planning, Executing, Verifying} {
				add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: phase, JournalUpto: hour + 1})
			}
			lease(agboxv1.AgentEventType_AGENT_MANIFEST)
			lease(agboxv1.AgentEventType_AGENT_GRANTED)
			lease(agboxv1.AgentEventType_AGENT_RELEASED)
			for word := range agboxv1.AgentLiveness(3) {
				add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_LIVENESS, Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Liveness: word}}})
			}
			add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forApproval}}})
			add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN})
			add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: Executing})
		}
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PROGRESS, Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{Steps: uint64(day) + 1}}})
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: lost}}})
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forOrphan}}})
	}
	const keep = 50
	if left := trimmed(t, log, keep, t0.Add(time.Hour*1000)); len(left) > keep+20 {
		t.Errorf("of %d events %d are left: %v", len(log), len(left), left[:len(left)-keep])
	}
}
