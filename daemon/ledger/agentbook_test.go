package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestTheIndexesOfAgentsFollowEveryChange compares the indexes with a look at all agents.
func TestTheIndexesOfAgentsFollowEveryChange(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	check := func(l *Ledger, when string) {
		t.Helper()
		for _, box := range []string{"s", "other", "nobody"} {
			want := idsOf(l.Agents(func(a Agent) bool { return a.SandboxID == box && (!a.Over() || a.Incarnation != nil || a.Owned) }))
			if got := idsOf(l.AgentsIn(box)); !slices.Equal(got, want) {
				t.Errorf("%s: sandbox %s has the agents %v; want %v", when, box, got, want)
			}
		}
		for _, id := range []string{"a", "b", "c"} {
			a, exists := l.Agent(id)
			for n := range uint32(3) {
				want := exists && a.Incarnation != nil && a.Incarnation.N == n+1
				if got, ok := l.AgentOf("s", agents.ExecID(id, n+1)); ok != want || ok && got.ID != id {
					t.Errorf("%s: exec %d of agent %s belongs to %q, %v; want %v", when, n+1, id, got.ID, ok, want)
				}
			}
		}
		if _, ok := l.AgentOf("other", agents.ExecID("a", 1)); ok {
			t.Errorf("%s: an exec was taken for that of another sandbox", when)
		}
	}
	ready(t, l, "s")
	ready(t, l, "other")
	check(l, "before any agent")
	a := spawn(t, l, agentOf("a", "one", "s"))
	spawn(t, l, agentOf("b", "two", "s"))
	spawn(t, l, agentOf("c", "three", "other"))
	check(l, "after the spawns")
	a = emitAgent(t, l, a.Record, begun(1))
	check(l, "after the begin")
	a = emitAgent(t, l, a.Record, neverStarted(1))
	check(l, "after the end of the incarnation")
	emitAgent(t, l, a.Record, begun(2))
	check(l, "after the next begin")
	stop()
	l, _ = open(t, dir)
	check(l, "after a restart")
	a, _ = l.Agent("a")
	a = emitAgent(t, l, a.Record, neverStarted(2))
	emitAgent(t, l, a.Record, agents.Reaped("test"))
	if _, err := l.DeleteAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	check(l, "after the deletion")
}

// A filter may look at agents, and an agent may be committed meanwhile. Under the lock of the
// reader the two would wait for each other for ever.
func TestAFilterOfAgentsIsCalledWithoutTheLock(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "one", "s"))
	spawn(t, l, agentOf("b", "two", "s"))
	list := l.Agents(func(a Agent) bool {
		if !l.agents.mu.TryLock() {
			t.Error("the filter is called under the lock")
			return false
		}
		l.agents.mu.Unlock()
		spawn(t, l, agentOf("beside-"+a.ID, "", "s"))
		_, known := l.Agent("beside-" + a.ID)
		return known
	})
	if got := idsOf(list); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("it finds %v, want those that were there before", got)
	}
}

func neverStarted(n uint32) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: n,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED}},
	}
}

func idsOf(list []Agent) (ids []string) {
	for _, a := range list {
		ids = append(ids, a.ID)
	}
	return ids
}

// BenchmarkAgentsOfASandbox: each round of a sandbox asks for its agents.
func BenchmarkAgentsOfASandbox(b *testing.B) {
	var l Ledger
	l.agents.init()
	for i := range maxAgents {
		var a Agent
		a.ID, a.SandboxID, a.Position = fmt.Sprint("a-", i), fmt.Sprint("s-", i), uint64(i)
		l.agents.putLocked(a)
	}
	for b.Loop() {
		l.AgentsIn("s-7")
		l.AgentOf("s-7", "an ordinary command")
	}
}

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

// TestAJournalThatIsRemovedWhileItIsCountedDoesNotCount: its size is read without the lock.
func TestAJournalThatIsRemovedWhileItIsCountedDoesNotCount(t *testing.T) {
	for name, remove := range map[string]func(l *Ledger) error{
		"with its exec": func(l *Ledger) error {
			return l.Forget(t.Context(), "s", []machine.TrimPart{{ExecID: agents.ExecID("a", 1)}})
		},
		"as a file": func(l *Ledger) error { l.RecountJournals("s"); return nil },
	} {
		l := fresh(t)
		ready(t, l, "s")
		n := agentOf("a", "", "s")
		n.Spec.Stack = &agboxv1.AgentStack{Name: "crew", JournalBytes: 1 << 20}
		a := spawn(t, l, n)
		for i := range uint32(2) {
			a = emitAgent(t, l, a.Record, begun(i+1))
			endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED})
			a = now(t, l, "a")
		}
		sizes := map[uint32]uint64{1: 1000, 2: 10}
		l.CountJournals(a, func(incarnation uint32) uint64 {
			size := sizes[incarnation]
			if incarnation == 1 && size > 0 {
				delete(sizes, 1)
				if err := remove(l); err != nil {
					t.Fatal(err)
				}
			}
			return size
		})
		if got := l.StackJournals(a)[0].Ended; got != 10 {
			t.Errorf("removed %s: %d bytes count; want 10", name, got)
		}
		if list := l.UncountedJournals(a); len(list) > 0 {
			t.Errorf("removed %s: %d agents are not counted", name, len(list))
		}
	}
}
