package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
)

// child is an agent with a parent.
func child(id, parent string) NewAgent {
	n := agentOf(id, "", "s")
	n.Parent = parent
	return n
}

func TestAnAgentKnowsItsChildren(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, child("b", "a"))
	c := spawn(t, l, child("c", "a"))
	spawn(t, l, child("d", "b"))
	check := func(when string, want map[string][]string) {
		t.Helper()
		for _, id := range []string{agents.Init, "a", "b", "c", "d"} {
			if got := idsOf(l.Children(id)); !slices.Equal(got, want[id]) {
				t.Errorf("%s: the children of %s are %v; want %v", when, id, got, want[id])
			}
		}
	}
	check("after the spawns", map[string][]string{agents.Init: {"a"}, "a": {"b", "c"}, "b": {"d"}})
	emitAgent(t, l, c.Record, agents.Reaped("test"))
	if _, err := l.DeleteAgent(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	check("after a deletion", map[string][]string{agents.Init: {"a"}, "a": {"b"}, "b": {"d"}})
	stop()
	l, _ = open(t, dir)
	check("after a restart", map[string][]string{agents.Init: {"a"}, "a": {"b"}, "b": {"d"}})
}

func TestOnlyALivingAgentGetsAChild(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	_, err := l.SpawnAgent(t.Context(), child("b", "nobody"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	a := spawn(t, l, agentOf("a", "", "s"))
	emitAgent(t, l, a.Record, agents.Reaped("test"))
	_, err = l.SpawnAgent(t.Context(), child("b", "a"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	if _, exists := l.Agent("b"); exists {
		t.Error("an agent that has ended got a child")
	}
}

// next is the step that follows for an agent in a READY sandbox.
func next(l *Ledger, id string) agents.Step {
	a, _ := l.Agent(id)
	return agents.Next(a.Record, agents.Seen{Sandbox: agents.SandboxReady, Exec: agents.ExecRunning, Kin: l.Kin(a)}, agents.RulesOf(a.Spec), l.now())
}

// end ends an agent that runs nothing.
func end(t *testing.T, l *Ledger, id string, state agboxv1.AgentState) {
	t.Helper()
	a, _ := l.Agent(id)
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: state, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Message: "test"}},
	})
}

func TestTheNearestLivingAncestorAdopts(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, child("b", "a"))
	spawn(t, l, child("c", "b"))
	spawn(t, l, child("d", "c"))
	end(t, l, "c", agents.Completed)
	late := next(l, "d")
	if late.Event.GetReparent().GetParent() != "b" {
		t.Fatalf("the step after the end of its parent is %v", late)
	}
	end(t, l, "b", agents.Failed)
	d, _ := l.Agent("d")
	if after := emitAgent(t, l, d.Record, late.Event); after.Parent != "c" {
		t.Errorf("an agent that has ended meanwhile adopted it: %s", after.Parent)
	}
	if after := emitAgent(t, l, d.Record, next(l, "d").Event); after.Parent != "a" {
		t.Errorf("it was adopted by %s", after.Parent)
	}
	end(t, l, "a", agents.Aborted)
	end(t, l, "d", agents.Completed) // before its round saw the end of its parent
	if d, _ := l.Agent("d"); d.Parent != agents.Init || !d.Over() {
		t.Errorf("it ended as a child of %s", d.Parent)
	}
	if in := idsOf(l.Children("c")); len(in) != 0 {
		t.Errorf("its first parent still has the children %v", in)
	}
}

func TestAParentIsNotRemovedBeforeItsChildren(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	named := child("b", "a")
	named.Name = "worker"
	spawn(t, l, named)
	spawn(t, l, child("c", "b"))
	end(t, l, "b", agents.Completed)
	end(t, l, "a", agents.Completed)
	_, err := l.DeleteAgent(t.Context(), "a")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_HAS_CHILDREN)
	if want := `Agent a has children: worker. Remove them first, or remove the whole tree with "agbox agent rm --cascade a".`; err.Error() != want {
		t.Errorf("the error says %q; want %q", err, want)
	}
	if _, err := l.DeleteAgentTree(t.Context(), "a"); err == nil {
		t.Error("a living descendant was removed")
	}
	if _, exists := l.Agent("b"); !exists {
		t.Error("a tree was removed in part")
	}
	end(t, l, "c", agents.Completed) // is adopted by init before
	removed, err := l.DeleteAgentTree(t.Context(), "a")
	if got := idsOf(removed); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("removed %v, %v", got, err)
	}
	if _, err := l.DeleteAgent(t.Context(), "c"); err != nil {
		t.Error(err)
	}
}

// TestAnAgentIsNotRemovedWithASandboxInWhichOthersRun: they may be its children no more, because its
// parent has adopted them.
func TestAnAgentIsNotRemovedWithASandboxInWhichOthersRun(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("p", "", "s"))
	owner := agentOf("owner", "", "agent-owner")
	owner.Parent, owner.Own = "p", &agboxv1.CreateSpec{Image: "img"}
	spawn(t, l, owner)
	for _, id := range []string{"guest", "second"} {
		n := agentOf(id, "", "agent-owner")
		n.Parent = "owner"
		spawn(t, l, n)
	}
	end(t, l, "owner", agents.Completed)
	for _, id := range []string{"guest", "second"} {
		a, _ := l.Agent(id)
		emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
			Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
			Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: "p", From: "owner"}},
		})
	}
	end(t, l, "second", agents.Completed)
	_, single := l.DeleteAgent(t.Context(), "owner")
	_, tree := l.DeleteAgentTree(t.Context(), "owner")
	for _, err := range []error{single, tree} {
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS)
		if !strings.Contains(fmt.Sprint(err), "not ended: guest. Wait") {
			t.Errorf("the refusal is %v", err)
		}
	}
	if sb, _ := l.Sandbox("agent-owner"); sb.Want == machine.WantDeleted {
		t.Error("the sandbox is to be removed")
	}
	end(t, l, "guest", agents.Completed) // the remedy
	if _, err := l.DeleteAgent(t.Context(), "owner"); err != nil {
		t.Error(err)
	}
	if sb, _ := l.Sandbox("agent-owner"); sb.Want != machine.WantDeleted {
		t.Error("the sandbox stays without agents")
	}
}

// TestAnAgentIsRemovedWhoseSandboxIsGoing: the others there end with it, whatever becomes of the
// record.
func TestAnAgentIsRemovedWhoseSandboxIsGoing(t *testing.T) {
	l := fresh(t)
	owner := agentOf("owner", "", "agent-owner")
	owner.Own = &agboxv1.CreateSpec{Image: "img"}
	spawn(t, l, owner)
	spawn(t, l, agentOf("guest", "", "agent-owner"))
	end(t, l, "owner", agents.Completed)
	if _, err := l.RequestDelete(t.Context(), "agent-owner"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.DeleteAgent(t.Context(), "owner"); err != nil {
		t.Error(err)
	}
}

// after is an agent that follows others.
func after(id string, others ...string) NewAgent {
	n := agentOf(id, id, "s")
	n.Spec.After = others
	return n
}

func TestAFollowerBeginsOnceAllOthersHaveCompleted(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	_, err := l.SpawnAgent(t.Context(), after("x", "nobody"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	_, err = l.SpawnAgent(t.Context(), after("x", "x"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	spawn(t, l, after("a"))
	spawn(t, l, after("b", "a"))
	spawn(t, l, after("c", "a", "a"))
	d := spawn(t, l, after("d", "b", "c"))
	if again := spawn(t, l, after("d", "b", "c")); again.LastSequence != d.LastSequence {
		t.Error("a repeated spawn changed it")
	}
	_, err = l.SpawnAgent(t.Context(), after("root", agents.Init))
	if err == nil {
		t.Error("an agent follows the root, which never ends")
	}
	for _, id := range []string{"b", "c", "d"} {
		if step := next(l, id); step.Do != agents.Rest {
			t.Errorf("%s: %v", id, step)
		}
	}
	end(t, l, "a", agents.Completed)
	_, err = l.DeleteAgent(t.Context(), "a")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	stop()
	l, _ = open(t, dir)
	if got := idsOf(l.Followers("b")); !slices.Equal(got, []string{"d"}) {
		t.Errorf("after a restart b is followed by %v", got)
	}
	for id, want := range map[string]agents.Verb{"b": agents.Emit, "c": agents.Emit, "d": agents.Rest} {
		if step := next(l, id); step.Do != want {
			t.Errorf("%s: %v", id, step)
		}
	}
	end(t, l, "b", agents.Completed)
	end(t, l, "c", agents.Aborted)
	if done := next(l, "d").Event.GetDone(); done.GetErrorCode() != "DEPENDENCY_FAILED" || done.GetMessage() != "It was to follow agent c, which is ABORTED." {
		t.Errorf("d ends with %v", done)
	}
	end(t, l, "d", agents.Failed)
	if got := idsOf(l.Followers("c")); len(got) != 0 {
		t.Errorf("an agent that has ended still follows: %v", got)
	}
	if _, err := l.DeleteAgent(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestAStrongerKillReplacesAWeakerOne(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, child("b", "a"))
	for _, cascade := range []agboxv1.KillCascade{0, agboxv1.KillCascade_KILL_CASCADE_TREE} {
		a, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_TERMINATE, Cascade: cascade})
		if err != nil || a.Kill.GetCascade() != cascade {
			t.Fatalf("%v: %v, %v", cascade, a.Kill, err)
		}
		if got := next(l, "b").Event.GetType() == agboxv1.AgentEventType_AGENT_KILL_REQUESTED; got != (cascade != 0) {
			t.Errorf("a kill with %v ends the child: %v", cascade, got)
		}
	}
}
