package ledger

import (
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
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
	if old.Want != machine.WantDeleted || !exists || made.Name != "demo" || made.Spec.GetImage() != "img" {
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

// TestTheAgentsOfALostSandboxMoveTogether: the children of an agent run in its sandbox.
func TestTheAgentsOfALostSandboxMoveTogether(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	n := agentOf("a", "", "agent-a")
	n.Own = &agboxv1.CreateSpec{Image: "img", Name: "demo"}
	a := spawn(t, l, n)
	for _, id := range []string{"began", "waits", "killed", "over"} {
		c := agentOf(id, "", "agent-a")
		c.Parent = "a"
		spawn(t, l, c)
	}
	began, _ := l.Agent("began")
	a, began = emitAgent(t, l, a.Record, begun(1)), emitAgent(t, l, began.Record, begun(1))
	a = emitAgent(t, l, a.Record, neverStarted(1))
	over, _ := l.Agent("over")
	emitAgent(t, l, over.Record, agents.Reaped("test"))
	if _, err := l.RequestKill(t.Context(), "killed", &agboxv1.AgentKill{}); err != nil {
		t.Fatal(err)
	}
	if same, err := l.MoveAgent(t.Context(), a); err != nil || same.SandboxID != "agent-a" {
		t.Fatalf("while another agent may run there, it moved to %s, %v", same.SandboxID, err)
	}
	emitAgent(t, l, began.Record, neverStarted(1))
	if _, err := l.MoveAgent(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for restarted := range 2 {
		for id, want := range map[string]string{"a": "remade-2-a", "began": "remade-2-a", "waits": "remade-2-a", "killed": "agent-a", "over": "agent-a"} {
			if c, _ := l.Agent(id); c.SandboxID != want || c.Owned != (id == "a") {
				t.Errorf("agent %s is in %s, owned %v", id, c.SandboxID, c.Owned)
			}
		}
		named(t, l, "demo", "remade-2-a")
		if restarted == 0 {
			stop()
			l, _ = open(t, dir)
		}
	}
	old, _ := l.Sandbox("agent-a")
	if _, err := l.Emit(t.Context(), old.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_DELETED}); err != nil {
		t.Fatal(err)
	}
	named(t, l, "demo", "remade-2-a") // also after the removal of the old sandbox
	_, err := l.Create(t.Context(), "third", &agboxv1.CreateSpec{Image: "img", Name: "demo"})
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
}

// TestAnEndFromBeforeAMoveIsDropped: a round has read the agent, and then sees that its old sandbox
// is to go.
func TestAnEndFromBeforeAMoveIsDropped(t *testing.T) {
	l := fresh(t)
	n := agentOf("a", "", "agent-a")
	n.Own = &agboxv1.CreateSpec{Image: "img"}
	a, b := spawn(t, l, n), spawn(t, l, agentOf("b", "", "agent-a"))
	a = emitAgent(t, l, a.Record, begun(1))
	a = emitAgent(t, l, a.Record, neverStarted(1))
	if moved, err := l.MoveAgent(t.Context(), a); err != nil || moved.SandboxID != "remade-2-a" {
		t.Fatalf("it moved to %s, %v", moved.SandboxID, err)
	}
	step := agents.Next(b.Record, agents.Seen{Sandbox: agents.SandboxMissing}, agents.RulesOf(b.Spec), time.Unix(0, 0))
	if step.Do != agents.Emit || step.Event.GetState() != agents.Failed {
		t.Fatalf("the step is %v %v", step.Do, step.Event)
	}
	if after := emitAgent(t, l, b.Record, step.Event); after.Over() || after.SandboxID != "remade-2-a" {
		t.Errorf("it is %s in %s", after.Word(), after.SandboxID)
	}
}
