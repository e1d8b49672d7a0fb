package ledger

import (
	"fmt"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
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
