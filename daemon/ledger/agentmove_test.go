package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

func TestAnAgentMovesToANewSandboxOnce(t *testing.T) {
	l := fresh(t)
	n := agentOf("a", "", "agent-a")
	n.Own = &agboxv1.CreateSpec{Image: "img", Name: "demo", Envs: map[string]string{"API_TOKEN": "x"}}
	a := spawn(t, l, n)
	if same, err := l.MoveAgent(t.Context(), a); err != nil || same.SandboxID != "agent-a" {
		t.Errorf("an agent that never began moved to %s, %v", same.SandboxID, err)
	}
	a = emitAgent(t, l, a.Record, begun(1))
	a = emitAgent(t, l, a.Record, neverStarted(1))
	for range 2 { // the second is a repetition after a crash
		moved, err := l.MoveAgent(t.Context(), a)
		if err != nil || moved.SandboxID != "remade-2-a" {
			t.Fatalf("it moved to %s, %v", moved.SandboxID, err)
		}
	}
	old, _ := l.Sandbox("agent-a")
	made, exists := l.Sandbox("remade-2-a")
	if old.Want != machine.WantDeleted || !exists || made.Name != "" || made.Spec.GetImage() != "img" {
		t.Errorf("the old sandbox is wanted %v, the new one is %+v", old.Want, made.Record)
	}
	made, err := l.Reveal(t.Context(), made)
	if err != nil || made.Spec.GetEnvs()["API_TOKEN"] != "x" {
		t.Errorf("its secret is %q, %v", made.Spec.GetEnvs()["API_TOKEN"], err)
	}
	if in := l.AgentsIn("remade-2-a"); len(in) != 1 || len(l.AgentsIn("agent-a")) != 0 {
		t.Errorf("the agents of the new sandbox are %v", idsOf(in))
	}
}
