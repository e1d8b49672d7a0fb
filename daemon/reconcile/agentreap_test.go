package reconcile

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/ledger"
)

// tidy counts how often files of ended agents are looked for.
type tidy struct {
	Agents
	looks int
}

func (t *tidy) RemoveLeft(ledger.Agent) (int, error) { t.looks++; return 0, nil }

func (t *tidy) Metas() []string { return nil }

func TestAnEndedAgentCostsAResyncNothing(t *testing.T) {
	b, files := guesttest.New(t), new(tidy)
	l := &Loop{ledger: b.Ledger, agents: files, log: b.Log, agentsAtWork: make(map[string]*agentWork)}
	a, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "x", SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Ledger.EmitAgent(t.Context(), a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: agboxv1.AgentState_AGENT_STATE_ABORTED,
		Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// No pool of workers is there, so a round that is asked for would panic.
	resync := func(looks int) {
		t.Helper()
		if err := l.cleanUpAgents(t.Context(), nil); err != nil || files.looks != looks || len(l.agentsAtWork) != 0 {
			t.Errorf("%v; %d looks, want %d; %d agents are known, want none", err, files.looks, looks, len(l.agentsAtWork))
		}
		l.enqueueAgentsOf("a")
	}
	resync(1)
	resync(1)
	l.ReapAgents() // somebody asks for it
	resync(2)
	if _, err := b.Ledger.DeleteAgent(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	resync(2)
}
