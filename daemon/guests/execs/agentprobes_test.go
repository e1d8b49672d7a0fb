package execs

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
)

func TestProbesAndWorkAreRefusedWhereTheSupervisorKnowsNone(t *testing.T) {
	for _, row := range []struct {
		spec    *agboxv1.AgentSpec
		refused bool
	}{
		{&agboxv1.AgentSpec{}, false},
		{&agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_PROBE}, true},
		{&agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_REPORT}, true},
		{&agboxv1.AgentSpec{Work: "/task.md"}, true},
		{&agboxv1.AgentSpec{Probes: &agboxv1.AgentProbes{Liveness: new(agboxv1.AgentProbe)}}, true},
	} {
		b := newBench(t)
		b.serve(&supervisor{boot: "boot1", protocol: 2, start: runs("boot1")})
		b.connect()
		row.spec.Command = []string{"sleep"}
		a, err := b.ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "w", SandboxID: "a", Spec: row.spec})
		if err != nil {
			t.Fatal(err)
		}
		begun := &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
			Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: agents.ExecID("w", 1), SandboxId: "a", Attempt: 1}},
		}
		if _, err := b.ledger.EmitAgent(t.Context(), a.Record, begun); err != nil {
			t.Fatal(err)
		}
		_, err = b.runner.Create(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: agents.ExecID("w", 1), Command: row.spec.GetCommand()})
		if refused := err != nil && strings.Contains(err.Error(), "Create a new sandbox"); refused != row.refused || !refused && err != nil {
			t.Errorf("%v: error %v", row.spec, err)
		}
	}
}
