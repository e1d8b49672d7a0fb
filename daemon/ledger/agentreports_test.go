package ledger

import (
	"reflect"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// progressed is the report of totals with a row.
func progressed(row, steps uint64) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_PROGRESS, Incarnation: 1, JournalUpto: row,
		Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{Steps: steps}},
	}
}

// doneReported is the report of an outcome with a row.
func doneReported(row uint64) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_DONE_REPORTED, Incarnation: 1, JournalUpto: row,
		Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE}},
	}
}

// history lists the types of the events that are kept of an agent.
func history(t *testing.T, l *Ledger, id string) (types []agboxv1.AgentEventType) {
	t.Helper()
	c, err := l.OpenAgentEvents(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		var events []*agboxv1.AgentEvent
		if events, more, err = l.NextAgentEvents(t.Context(), c, 1); err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			types = append(types, ev.GetType())
		}
	}
	return types
}

func TestEachRowOfAJournalIsRecordedOnce(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	emitAgent(t, l, a.Record, begun(1))
	record := func(events ...*agboxv1.AgentEvent) Agent {
		a, err := l.RecordReports(t.Context(), "a", Reports{Events: events})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	record(progressed(3, 1))
	record(progressed(5, 2), doneReported(4))
	again := record(progressed(5, 9), doneReported(4)) // as a daemon that was killed after the commit
	phase := &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: agents.Executing, Incarnation: 1, JournalUpto: 6}
	forged := record(phase) // may not follow PENDING
	if forged.Incarnation.JournalUpto != 5 || forged.Progress.GetSteps() != 2 || forged.LastSequence != again.LastSequence || forged.State != agents.Pending {
		t.Errorf("the record is %+v with %v", forged.Record, forged.Incarnation)
	}
	want := []agboxv1.AgentEventType{
		agboxv1.AgentEventType_AGENT_SPAWNED, agboxv1.AgentEventType_AGENT_BEGUN,
		agboxv1.AgentEventType_AGENT_PROGRESS, agboxv1.AgentEventType_AGENT_DONE_REPORTED,
	}
	if got := history(t, l, "a"); !reflect.DeepEqual(got, want) {
		t.Errorf("the history is %v; want %v", got, want)
	}
	end := &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED}},
	}
	ended, err := l.EmitAgent(t.Context(), forged.Record, progressed(5, 9), progressed(7, 3), end)
	if err != nil || ended.Incarnation != nil || ended.Progress.GetSteps() != 3 {
		t.Errorf("after the end: %+v, %v", ended.Record, err)
	}
	if late := record(progressed(8, 4)); late.Progress.GetSteps() != 3 {
		t.Error("a report after the end was recorded")
	}
	stop()
	l, _ = open(t, dir)
	if got, _ := l.Agent("a"); got.Progress.GetSteps() != 3 || got.Done == nil || got.Last == nil {
		t.Errorf("after a restart: %+v", got.Record)
	}
}
