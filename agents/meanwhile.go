package agents

import (
	"cmp"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/lease"
)

// Passed is a resource of an agent that others held while it was paused.
type Passed struct {
	Resource string `json:"resource"`
	// Times is how often others got it in that time.
	Times int `json:"times"`
	// Fence is the highest fencing number that another of them had.
	Fence uint64 `json:"fence"`
	// Holders are those who held it last, at most maxPassed, newest first.
	Holders []PassedTo `json:"holders"`
}

// PassedTo is another agent that held a resource.
type PassedTo struct {
	AgentID string `json:"agent_id"`
	Name    string `json:"name"`
	// Times is 0 for one who had it already when the pause began.
	Times int    `json:"times"`
	Fence uint64 `json:"fence"`
}

// maxPassed is how many holders of a resource are named.
const maxPassed = 16

// Meanwhile gathers who held the resources of an agent since a position.
type Meanwhile struct {
	since uint64
	// fences has the fencing numbers by resource and agent.
	fences map[string]map[string][]uint64
}

// NewMeanwhile makes a Meanwhile for the agent's pause: for what it held then, and for what it
// holds and asks for now.
func NewMeanwhile(r Record) *Meanwhile {
	m := &Meanwhile{r.AwayFrom, make(map[string]map[string][]uint64)}
	for _, l := range r.Away.GetLeases() {
		m.fences[l.GetResource()] = make(map[string][]uint64)
	}
	for _, c := range append(lease.Claimed(r.Holds), r.Wants...) {
		m.fences[c.Resource] = make(map[string][]uint64)
	}
	return m
}

// Empty reports whether the agent has no resources that others could have had.
func (m *Meanwhile) Empty() bool { return len(m.fences) == 0 }

// Saw takes an event of another agent after the position into account.
func (m *Meanwhile) Saw(ev *agboxv1.AgentEvent) {
	list := ev.GetLease().GetLost()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_GRANTED, agboxv1.AgentEventType_AGENT_RELEASED, agboxv1.AgentEventType_AGENT_LEASES_EXPIRED:
		list = ev.GetLease().GetLeases()
	}
	for _, l := range list {
		m.had(ev.GetAgentId(), l.GetResource(), cmp.Or(l.GetFence(), ev.GetPosition()))
	}
}

// Holds takes into account what another agent holds now.
func (m *Meanwhile) Holds(id string, holds []lease.Hold) {
	for _, h := range holds {
		m.had(id, h.Resource, h.Fence)
	}
}

func (m *Meanwhile) had(id, resource string, fence uint64) {
	if by := m.fences[resource]; by != nil && !slices.Contains(by[id], fence) {
		by[id] = append(by[id], fence)
	}
}

// Passed returns the resources that others held, sorted, with names of the agents.
func (m *Meanwhile) Passed(name func(id string) string) []Passed {
	list := []Passed{}
	for _, resource := range keys(m.fences, nil) {
		p := Passed{Resource: resource}
		for id, fences := range m.fences[resource] {
			to := PassedTo{AgentID: id, Name: name(id), Fence: slices.Max(fences)}
			for _, fence := range fences {
				if fence > m.since {
					to.Times++
				}
			}
			p.Times, p.Fence = p.Times+to.Times, max(p.Fence, to.Fence)
			p.Holders = append(p.Holders, to)
		}
		slices.SortFunc(p.Holders, func(a, b PassedTo) int { return cmp.Compare(b.Fence, a.Fence) })
		p.Holders = p.Holders[:min(len(p.Holders), maxPassed)]
		if len(p.Holders) > 0 {
			list = append(list, p)
		}
	}
	return list
}
