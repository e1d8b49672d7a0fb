package reconcile

import (
	"context"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// alone is what agents need that nobody holds.
type alone struct{ Agents }

func (alone) Describe(context.Context, ledger.Agent) error { return nil }

func (alone) LostHolder(ledger.Agent) (string, time.Time) { return "", time.Time{} }

// TestEachDecisionThatAnAgentGoesOnIsTried: the container may be back by then. If it is not, the agent
// is ORPHANED again after one attempt.
func TestEachDecisionThatAnAgentGoesOnIsTried(t *testing.T) {
	b := guesttest.New(t)
	l := countRounds(t, b, unlinked{})
	l.agents, l.now, l.agentsAtWork = alone{}, time.Now, make(map[string]*agentWork)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fail := func() {
		t.Helper()
		sb, _ := b.Ledger.Sandbox("a")
		_, err := b.Ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{
			EventType: agboxv1.EventType_SANDBOX_FAILED,
			Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{
				ErrorCode: agboxv1.ErrorReason_PRIMARY_MISSING.String(), ErrorMessage: "It is gone.",
			}},
		})
		must(err)
	}
	a, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "x", SandboxID: "a", Spec: &agboxv1.AgentSpec{
		Command: []string{"true"}, Revival: agboxv1.AgentRevival_AGENT_REVIVAL_ASK,
	}})
	must(err)
	_, err = b.Ledger.EmitAgent(t.Context(), a.Record,
		&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{SandboxId: "a", ExecId: "x"}}},
		&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
			Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST,
		}}})
	must(err)
	fail()
	l.agentRound(t.Context(), "x")
	for n := range 3 {
		if a, _ = b.Ledger.Agent("x"); !a.Orphaned() || a.Pause.Woken {
			t.Fatalf("before decision %d it is %s: %+v", n+1, a.Word(), a.Pause)
		}
		_, err := b.Ledger.ResolveAgent(t.Context(), "x", agboxv1.AgentVerdict_AGENT_VERDICT_REVIVE)
		must(err)
		l.agentRound(t.Context(), "x")
		if sb, _ := b.Ledger.Sandbox("a"); sb.State != machine.Pending {
			t.Fatalf("after decision %d the sandbox is %v", n+1, sb.State)
		}
		fail()
		l.agentRound(t.Context(), "x")
	}
}
