package ledger

import (
	"slices"
	"testing"

	"github.com/agbox/agbox/agents"
)

// meanwhile returns who held the resources of an agent, which must be known for the whole time.
func meanwhile(t *testing.T, l *Ledger, id string) []agents.Passed {
	t.Helper()
	list, whole, err := l.HeldMeanwhile(t.Context(), now(t, l, id))
	if err != nil || !whole {
		t.Fatalf("known for the whole time: %v, %v", whole, err)
	}
	return list
}

func TestAPausedAgentLearnsWhoHeldItsResources(t *testing.T) {
	l := workers(t, "oldest", "old", "middle", "young")
	acquires(t, l, "oldest", granted, "x")
	acquires(t, l, "young", granted, "file:/other", "db")
	before := now(t, l, "young").Holds[0].Fence
	acquires(t, l, "middle", waits, "db")
	acquires(t, l, "old", waits, "db")
	ends(t, l, "young")
	acquires(t, l, "middle", granted, "db")
	fence := now(t, l, "middle").Holds[0].Fence
	if _, err := l.ReleaseLeases(t.Context(), now(t, l, "middle").Record, nil); err != nil {
		t.Fatal(err)
	}
	got := meanwhile(t, l, "old")
	if len(got) != 1 || got[0].Resource != "db" || got[0].Times != 1 || got[0].Fence != fence {
		t.Fatalf("it learns %+v; want db, once, %d", got, fence)
	}
	want := []agents.PassedTo{{AgentID: "middle", Times: 1, Fence: fence}, {AgentID: "young", Fence: before}}
	if !slices.Equal(got[0].Holders, want) {
		t.Errorf("the holders are %+v; want %+v", got[0].Holders, want)
	}
	if got := meanwhile(t, l, "oldest"); len(got) > 0 {
		t.Errorf("an agent whose resource nobody else had learns %+v", got)
	}
}

// TestWhatAnAgentLostToWaitDieWasHeld has an agent wait for another that dies: only the event
// about that says what it had.
func TestWhatAnAgentLostToWaitDieWasHeld(t *testing.T) {
	l := workers(t, "older", "old", "young")
	acquires(t, l, "older", granted, "x")
	acquires(t, l, "young", granted, "db")
	before := now(t, l, "young").Holds[0].Fence
	acquires(t, l, "old", waits, "db")
	acquires(t, l, "young", dies, "x")
	got := meanwhile(t, l, "old")
	if len(got) != 1 || !slices.Equal(got[0].Holders, []agents.PassedTo{{AgentID: "young", Fence: before}}) {
		t.Errorf("it learns %+v", got)
	}
}
