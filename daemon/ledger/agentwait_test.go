package ledger

import (
	"fmt"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// took says which agents a wait has returned.
func took(w *AgentWait) string {
	ended, more := w.Take()
	return strings.Join(idsOfAgents(ended), " ") + fmt.Sprint(" ", more)
}

// TestAWaitForATreeFindsThoseBelowRemovedAgents: also after a restart, and if the agent that is
// named was removed itself.
func TestAWaitForATreeFindsThoseBelowRemovedAgents(t *testing.T) {
	dir := t.TempDir()
	l, closeStore := open(t, dir)
	ready(t, l, "s")
	parent := ""
	for _, id := range []string{"root", "one", "two", "leaf"} {
		n := agentOf(id, "", "s")
		n.Parent, parent = parent, id
		spawn(t, l, n)
	}
	for _, id := range []string{"root", "one", "two"} {
		emitAgent(t, l, now(t, l, id).Record, agents.Reaped("test"))
	}
	emitAgent(t, l, now(t, l, "leaf").Record, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: agents.Init, From: "two"}},
	})
	wants := func(when, want string) {
		t.Helper()
		w := l.WaitForEnd("root", true)
		defer w.Close()
		if got := took(w); got != want {
			t.Errorf("%s, a wait for the tree gives %q; want %q", when, got, want)
		}
		if spawner, more := l.Spawner("root"), want != " false"; spawner != more {
			t.Errorf("%s, it has spawned one that was not removed: %v; want %v", when, spawner, more)
		}
	}
	remove := func(id string) {
		t.Helper()
		if _, err := l.DeleteAgent(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	wants("with all", "root one two true")
	remove("two")
	remove("one")
	wants("after the removal of those between", "root true")
	closeStore()
	l, closeStore = open(t, dir)
	wants("after a restart", "root true")
	remove("root")
	closeStore()
	l, _ = open(t, dir)
	wants("after its own removal", " true")
	emitAgent(t, l, now(t, l, "leaf").Record, agents.Reaped("test"))
	wants("after the end of the last", "leaf false")
	remove("leaf")
	for _, id := range []string{"root", "one", "two", "leaf"} {
		if err := l.DropAgent(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	wants("after the removal of all", " false")
	if n := len(l.agents.offspring); n > 0 {
		t.Errorf("of %d removed agents is known what they spawned", n)
	}
}

// TestAWaitForATreeLearnsOfItsAgentsOnly: also of those that others have adopted before, of which
// the parent is another one now, and of those that are spawned meanwhile.
func TestAWaitForATreeLearnsOfItsAgentsOnly(t *testing.T) {
	dir := t.TempDir()
	l, closeStore := open(t, dir)
	ready(t, l, "s")
	born := func(id, parent string) {
		t.Helper()
		n := agentOf(id, "", "s")
		n.Parent = parent
		spawn(t, l, n)
	}
	end := func(id string) {
		t.Helper()
		a, _ := l.Agent(id)
		emitAgent(t, l, a.Record, agents.Reaped("test"))
	}
	born("root", "")
	born("child", "root")
	born("first", "root")
	born("stranger", "")
	end("first")
	end("root")
	child, _ := l.Agent("child")
	emitAgent(t, l, child.Record, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: agents.Init, From: "root"}},
	})
	closeStore()
	l, _ = open(t, dir)
	one, tree := l.WaitForEnd("child", false), l.WaitForEnd("root", true)
	defer one.Close()
	for i, step := range []struct {
		do        func()
		woken     bool // the wait for the tree
		one, tree string
	}{
		{func() {}, true, " true", "first root true"},
		{func() { end("stranger") }, false, " true", " true"},
		{func() { born("grandchild", "child") }, false, " true", " true"},
		{func() { end("child") }, true, "child false", "child true"},
		{func() { end("grandchild") }, true, " false", "grandchild false"},
	} {
		step.do()
		select {
		case <-tree.Changed:
			if !step.woken {
				t.Errorf("step %d wakes the wait", i)
			}
		default:
			if step.woken {
				t.Errorf("step %d does not wake the wait", i)
			}
		}
		if got := took(one); got != step.one {
			t.Errorf("step %d: a wait for the child gives %q; want %q", i, got, step.one)
		}
		if got := took(tree); got != step.tree {
			t.Errorf("step %d: a wait for the tree gives %q; want %q", i, got, step.tree)
		}
	}
	if tree.Close(); len(l.agents.waits) != 1 {
		t.Errorf("%d waits are left; want one", len(l.agents.waits))
	}
}
