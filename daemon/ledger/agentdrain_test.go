package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// pausedBy emits a pause of an agent.
func pausedBy(t *testing.T, l *Ledger, a Agent, reason agboxv1.PauseReason) Agent {
	t.Helper()
	return emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: reason}},
	})
}

func TestADrainIsRequestedOnceAndResumedOnce(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "one", "s"))
	a = emitAgent(t, l, a.Record, begun(1))
	request := func(f func() (Agent, error), reason agboxv1.ErrorReason) {
		t.Helper()
		var err error
		if a, err = f(); reason != 0 {
			wantReason(t, err, reason)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	drain := func() (Agent, error) { return l.RequestDrain(t.Context(), "a") }
	wake := func() (Agent, error) { return l.WakeAgent(t.Context(), "a") }
	request(wake, agboxv1.ErrorReason_AGENT_WRONG_STATE) // it works
	request(drain, 0)
	before := a.LastSequence
	request(drain, 0)
	if a.LastSequence != before || a.PauseWanted.GetReason() != forRequest {
		t.Fatalf("after two drains: %+v", a.Record)
	}
	request(wake, 0) // the drain goes on, and the agent after it
	if a.PauseWanted.GetReason() != forDrain {
		t.Fatalf("resumed while it is drained: %+v", a.PauseWanted)
	}
	request(drain, 0)
	a = emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, DrainedFor: forRequest}},
	})
	a = pausedBy(t, l, a, forRequest)
	before = a.LastSequence
	request(drain, 0)
	if a.LastSequence != before {
		t.Error("a drained agent is drained again")
	}
	request(wake, 0)
	if !a.Pause.Woken {
		t.Errorf("it is not woken: %+v", a.Record)
	}
	request(wake, 0)
	request(drain, 0) // before its next incarnation begins
	if a.PauseWanted.GetReason() != forRequest {
		t.Errorf("drained again: %+v", a.Record)
	}
}

func TestWhoCannotBeDrainedOrResumed(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	for _, id := range []string{agents.Init, "nobody"} {
		for _, f := range []func() (Agent, error){
			func() (Agent, error) { return l.RequestDrain(t.Context(), id) }, func() (Agent, error) { return l.WakeAgent(t.Context(), id) },
		} {
			if _, err := f(); err == nil {
				t.Errorf("%s is drained or resumed", id)
			}
		}
	}
	for _, reason := range []agboxv1.PauseReason{agboxv1.PauseReason_PAUSE_REASON_CRASH, agboxv1.PauseReason_PAUSE_REASON_ORPHANED, agboxv1.PauseReason_PAUSE_REASON_APPROVAL} {
		id := reason.String()
		pausedBy(t, l, spawn(t, l, agentOf(id, "", "s")), reason)
		_, err := l.WakeAgent(t.Context(), id)
		wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	}
	for _, reason := range []agboxv1.PauseReason{forRequest, forDrain, forIdle} {
		id := reason.String()
		pausedBy(t, l, spawn(t, l, agentOf(id, "", "s")), reason)
		if a, err := l.WakeAgent(t.Context(), id); err != nil || !a.Pause.Woken {
			t.Errorf("%s: %v", id, err)
		}
	}
	over := spawn(t, l, agentOf("over", "", "s"))
	emitAgent(t, l, over.Record, agents.Reaped("gone"))
	_, err := l.RequestDrain(t.Context(), "over")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	_, err = l.WakeAgent(t.Context(), "over")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
}
