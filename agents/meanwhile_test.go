package agents

import (
	"fmt"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/lease"
)

func TestTheNewestOfManyHoldersAreNamed(t *testing.T) {
	m := NewMeanwhile(Record{AwayFrom: 100, Wants: []lease.Claim{{Resource: "db", Mode: lease.Exclusive}}})
	const others = maxPassed + 4
	for n := range others {
		for range 2 { // read twice, it counts once
			m.Saw(&agboxv1.AgentEvent{AgentId: fmt.Sprint(n), Position: uint64(101 + n), Type: agboxv1.AgentEventType_AGENT_GRANTED,
				Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{Leases: []*agboxv1.AgentLease{{Resource: "db"}, {Resource: "not its own"}}}}})
		}
	}
	m.Holds("0", []lease.Hold{{Claim: lease.Claim{Resource: "db"}, Fence: 101}})
	got := m.Passed(func(id string) string { return "name of " + id })
	if len(got) != 1 || got[0].Times != others || got[0].Fence != 100+others || len(got[0].Holders) != maxPassed {
		t.Fatalf("%+v", got)
	}
	if first, want := got[0].Holders[0], (PassedTo{"19", "name of 19", 1, 120}); first != want {
		t.Errorf("the newest holder is %+v; want %+v", first, want)
	}
}

func TestWhatAnAgentKeepsIsGivenWithItsFencingNumber(t *testing.T) {
	holds := lease.Merge(nil, []lease.Claim{{Resource: "a", Mode: lease.Exclusive}, {Resource: "b", Mode: lease.Shared}}, 7)
	for i, l := range Given(holds, []lease.Claim{{Resource: "a", Mode: lease.Shared}, {Resource: "b", Mode: lease.Exclusive}, {Resource: "c", Mode: lease.Shared}}) {
		if want := []uint64{7, 0, 0}[i]; l.GetFence() != want {
			t.Errorf("%s is given with the number %d; want %d", l.GetResource(), l.GetFence(), want)
		}
	}
}
