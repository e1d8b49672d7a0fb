package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

const (
	approved = agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED
	denied   = agboxv1.AgentApproval_AGENT_APPROVAL_DENIED
)

func TestAPauseEndsByOneDecision(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "one", "s"))
	emitAgent(t, l, a.Record, begun(1))
	_, err := l.ApproveAgent(t.Context(), "a", approved, "")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE) // it does not wait
	pause := func() (Agent, error) { return l.PauseAgent(t.Context(), "a", "look first") }
	for range 2 {
		if a, err = pause(); err != nil || a.LastSequence != 3 {
			t.Fatalf("paused: %+v, %v", a.Record, err)
		}
	}
	if a.State != agents.Paused || a.Incarnation == nil || a.Word() != "WAITING_FOR_APPROVAL" || a.Pause.Message != "look first" {
		t.Fatalf("the program must go on running: %+v", a.Record)
	}
	_, err = l.WakeAgent(t.Context(), "a")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE) // only an approval wakes it
	for range 2 {
		if a, err = l.ApproveAgent(t.Context(), "a", denied, "not on Friday"); err != nil {
			t.Fatal(err)
		}
	}
	if !a.Pause.Woken || a.Decision.Approval != denied || a.Decision.Answer != "not on Friday" {
		t.Fatalf("denied: %+v", a.Pause)
	}
	_, err = l.ApproveAgent(t.Context(), "a", approved, "")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE) // it was decided before
}

// TestAnApprovalWaitsForTheProgramToEnd pauses an agent that is drained, and one whose end is
// not answered yet: neither may be lost.
func TestAnApprovalWaitsForTheProgramToEnd(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "one", "s"))
	a = emitAgent(t, l, a.Record, begun(1))
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 9}},
	})
	a, err := l.PauseAgent(t.Context(), "a", "wait")
	if err != nil || !a.Undecided || a.PauseWanted.GetReason() != forApproval {
		t.Fatalf("the end is not answered any more: %+v, %v", a.Record, err)
	}
	emitAgent(t, l, a.Record, agents.Ending(a.Record, agents.RulesOf(a.Spec)))
	if a, err = l.PauseAgent(t.Context(), "a", "wait"); err != nil || a.PauseWanted == nil || a.Crashes != 1 {
		t.Fatalf("after the crash: %+v, %v", a.Record, err)
	}
	pausedBy(t, l, a, forApproval)
	if _, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{}); err != nil {
		t.Fatal(err)
	}
	if _, err = l.ApproveAgent(t.Context(), "a", approved, ""); err != nil {
		t.Fatal(err)
	}
	_, err = l.PauseAgent(t.Context(), "a", "again")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	if a, _ = l.Agent("a"); a.Crashes != 1 || a.Decision.Approval != approved {
		t.Errorf("at the end: %+v", a.Record)
	}
}

// TestARoundThatSawAnEarlierPauseBeginsNothing pauses an agent that is about to be tried again.
func TestARoundThatSawAnEarlierPauseBeginsNothing(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := pausedBy(t, l, spawn(t, l, agentOf("a", "one", "s")), agboxv1.PauseReason_PAUSE_REASON_CRASH)
	seen := a.Record
	if a, err := l.PauseAgent(t.Context(), "a", ""); err != nil || !a.AwaitsApproval() {
		t.Fatalf("%+v, %v", a.Record, err)
	}
	if a, err := l.EmitAgent(t.Context(), seen, begun(1)); err != nil || a.Incarnation != nil || !a.AwaitsApproval() {
		t.Errorf("an outdated decision counts: %+v, %v", a.Record, err)
	}
}
