package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// TestAMoveLeavesANameToItsNewOwner: the old sandbox is being removed, and its name was free.
func TestAMoveLeavesANameToItsNewOwner(t *testing.T) {
	for taken, want := range map[bool]string{false: "remade-2-a", true: "bb"} {
		l := fresh(t)
		n := agentOf("a", "", "agent-a")
		n.Own = &agboxv1.CreateSpec{Image: "img", Name: "demo"}
		a := spawn(t, l, n)
		a = emitAgent(t, l, a.Record, begun(1))
		a = emitAgent(t, l, a.Record, neverStarted(1))
		if _, err := l.RequestDelete(t.Context(), "agent-a"); err != nil {
			t.Fatal(err)
		}
		emit(t, l, "agent-a", agboxv1.EventType_SANDBOX_ENDED)
		if taken {
			create(t, l, "bb", "demo")
		}
		if moved, err := l.MoveAgent(t.Context(), a); err != nil || moved.SandboxID != "remade-2-a" {
			t.Fatalf("it moved to %s, %v", moved.SandboxID, err)
		}
		named(t, l, "demo", want)
	}
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
