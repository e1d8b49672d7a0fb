package ledger

import (
	"fmt"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// heldAgentOf is an agent that a client holds.
func heldAgentOf(id, sandboxID, holder string) NewAgent {
	n := agentOf(id, id, sandboxID)
	n.Spec.Lifetime, n.Holder, n.Linger = agboxv1.AgentLifetime_AGENT_LIFETIME_HELD, holder, time.Minute
	return n
}

func TestHoldsAreOpenedAndClosedOnce(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, heldAgentOf("a", "s", "client:c"))
	again := spawn(t, l, heldAgentOf("a", "s", "client:c"))
	if !a.HeldBy("client:c") || a.Holders[0].Linger != time.Minute || again.LastSequence != a.LastSequence {
		t.Fatalf("spawned twice: %+v", again.Record)
	}
	for range 2 {
		var err error
		if a, err = l.OpenHold(t.Context(), "a", "agent:b", 0); err != nil || len(a.Holders) != 2 || a.LastSequence != 3 {
			t.Fatalf("opened: %+v, %v", a.Record, err)
		}
	}
	if a, err := l.OpenHold(t.Context(), "a", "client:c", time.Second); err != nil || len(a.Holders) != 2 || a.Holders[1].Linger != time.Second {
		t.Fatalf("with another linger: %+v, %v", a.Record, err)
	}
	if a, err := l.EndHold(t.Context(), "a", "agent:b", "", func(Agent) bool { return false }); err != nil || len(a.Holders) != 2 {
		t.Fatalf("ended although it came back: %+v, %v", a.Record, err)
	}
	for range 2 {
		for _, holder := range []string{"agent:b", "client:c"} {
			if _, err := l.CloseHold(t.Context(), "a", holder, "as asked"); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, _ = l.Agent("a")
	if !a.Unheld() || a.LastSequence != 6 {
		t.Fatalf("closed: %+v", a.Record)
	}
	reloaded, err := l.loadAgent(t.Context(), "a")
	if err != nil || !reloaded.Unheld() {
		t.Fatalf("in the store: %+v, %v", reloaded.Record, err)
	}
}

func TestAHoldWakesWhomNobodyHeld(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, heldAgentOf("a", "s", ""))
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forUnheld}},
	})
	if _, err := l.WakeAgent(t.Context(), "a"); err == nil {
		t.Error("a suspended agent can be resumed without a holder")
	}
	a, err := l.OpenHold(t.Context(), "a", "client:c", time.Second)
	if err != nil || !a.Pause.Woken {
		t.Fatalf("it is not woken: %+v, %v", a.Record, err)
	}
	emitAgent(t, l, a.Record, begun(1))
	if _, err = l.CloseHold(t.Context(), "a", "client:c", ""); err != nil {
		t.Fatal(err)
	}
	a, _ = l.Agent("a")
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forUnheld}},
	})
	if a, err = l.OpenHold(t.Context(), "a", "client:d", time.Second); err != nil || a.PauseWanted.GetReason() != forDrain {
		t.Fatalf("it is not to go on after its drain: %+v, %v", a.Record, err)
	}
}

func TestHoldsAreBoundedAndEndWithTheAgent(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "a", "s"))
	for n := range agents.MaxHolders {
		if _, err := l.OpenHold(t.Context(), "a", agents.ClientHolder(fmt.Sprint(n)), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.OpenHold(t.Context(), "a", "client:more", time.Second)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_LIMIT)
	_, err = l.OpenHold(t.Context(), "nobody", "client:c", time.Second)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	_, err = l.OpenHold(t.Context(), agents.Init, "client:c", time.Second)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	a, _ := l.Agent("a")
	emitAgent(t, l, a.Record, agents.Reaped("as asked"))
	_, err = l.OpenHold(t.Context(), "a", "client:more", time.Second)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
}
