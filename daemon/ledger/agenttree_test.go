package ledger

import (
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
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
		for _, id := range []string{agent.Init, "a", "b", "c", "d"} {
			if got := idsOf(l.Children(id)); !slices.Equal(got, want[id]) {
				t.Errorf("%s: the children of %s are %v; want %v", when, id, got, want[id])
			}
		}
	}
	check("after the spawns", map[string][]string{agent.Init: {"a"}, "a": {"b", "c"}, "b": {"d"}})
	emitAgent(t, l, c.Record, agent.Reaped("test"))
	if _, err := l.DeleteAgent(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	check("after a deletion", map[string][]string{agent.Init: {"a"}, "a": {"b"}, "b": {"d"}})
	stop()
	l, _ = open(t, dir)
	check("after a restart", map[string][]string{agent.Init: {"a"}, "a": {"b"}, "b": {"d"}})
}

func TestOnlyALivingAgentGetsAChild(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	_, err := l.SpawnAgent(t.Context(), child("b", "nobody"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	a := spawn(t, l, agentOf("a", "", "s"))
	emitAgent(t, l, a.Record, agent.Reaped("test"))
	_, err = l.SpawnAgent(t.Context(), child("b", "a"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	if _, exists := l.Agent("b"); exists {
		t.Error("an agent that has ended got a child")
	}
}
