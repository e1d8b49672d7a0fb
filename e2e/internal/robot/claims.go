package robot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Claims are what the events of a family say about holds and leases.
type Claims struct {
	// Grants is how many times an agent got a resource, Conflicts how often one was refused all
	// that it asked for, and Expiries how often leases have expired.
	Grants, Conflicts, Expiries int
	// Suspensions is how often an agent was suspended because nobody held it.
	Suspensions int
}

// table is who holds what while the events are replayed.
type table struct {
	t *testing.T
	// stacks has the innermost border of each agent, within which equal names mean the same
	// resource, and borders the outermost.
	stacks, borders map[string]string
	// leases has the mode of each resource that an agent has a lease for.
	leases map[string]map[string]agboxv1.LeaseMode
	// fences has the fencing numbers of each resource and agent.
	fences map[[2]string][]uint64
	// newest has the highest fencing number of each resource of a stack.
	newest map[[2]string]uint64
	// held is set for agents that need a holder. holders and parents are those of each agent.
	held    map[string]bool
	holders map[string]map[string]bool
	parents map[string]string
	Claims
}

// CheckClaims replays the events in the order of their positions: no two agents hold the same
// resource at any time unless both share it, each lease is released once, fencing numbers only
// grow, and no agent is suspended while somebody holds it. It does not use the fold of the
// daemon.
func (f Family) CheckClaims(t *testing.T) Claims {
	t.Helper()
	x := table{
		t: t, leases: make(map[string]map[string]agboxv1.LeaseMode), fences: make(map[[2]string][]uint64), newest: make(map[[2]string]uint64), stacks: make(map[string]string),
		borders: make(map[string]string), held: make(map[string]bool), holders: make(map[string]map[string]bool), parents: make(map[string]string),
	}
	for _, ev := range f.Events {
		x.replayLease(ev)
		x.replayHold(ev)
	}
	for id, held := range x.leases {
		if len(held) > 0 {
			t.Errorf("at the end agent %s still holds %v", id, slices.Sorted(maps.Keys(held)))
		}
	}
	for _, a := range f.Agents {
		for _, e := range f.Folder.Story(t, a.GetAgentId()).entries {
			if e.What == diary.Leased && !slices.Contains(x.fences[[2]string{a.GetAgentId(), e.Text}], e.Fence) {
				t.Errorf("agent %s was told the fencing number %d of %s; granted were %v", a.GetAgentId(), e.Fence, e.Text, x.fences[[2]string{a.GetAgentId(), e.Text}])
			}
		}
	}
	return x.Claims
}

// replayLease follows one event about leases.
func (x *table) replayLease(ev *agboxv1.AgentEvent) {
	x.t.Helper()
	id := ev.GetAgentId()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_GRANTED:
		for _, l := range ev.GetLease().GetLeases() {
			x.grant(id, l, ev.GetPosition())
		}
	case agboxv1.AgentEventType_AGENT_CONFLICT:
		x.Conflicts++
		if ev.GetLease().GetVerdict() == agboxv1.LeaseVerdict_LEASE_VERDICT_DIE {
			delete(x.leases, id)
		}
	case agboxv1.AgentEventType_AGENT_RELEASED, agboxv1.AgentEventType_AGENT_LEASES_EXPIRED:
		if ev.GetType() == agboxv1.AgentEventType_AGENT_LEASES_EXPIRED {
			x.Expiries++
		}
		for _, l := range ev.GetLease().GetLeases() {
			if _, has := x.leases[id][l.GetResource()]; !has {
				x.t.Errorf("position %d: agent %s releases %s, which it does not hold", ev.GetPosition(), id, l.GetResource())
			}
			delete(x.leases[id], l.GetResource())
		}
	}
}

// grant gives an agent a resource. One that it holds already keeps its fencing number, unless it
// was shared and is not now.
func (x *table) grant(id string, l *agboxv1.AgentLease, position uint64) {
	x.t.Helper()
	const shared = agboxv1.LeaseMode_LEASE_MODE_SHARED
	name, mode := l.GetResource(), l.GetMode()
	had, has := x.leases[id][name]
	if has && (had == mode || mode == shared) {
		return
	}
	for other, leases := range x.leases {
		if theirs, has := leases[name]; has && other != id && x.stacks[other] == x.stacks[id] && (mode != shared || theirs != shared) {
			x.t.Errorf("position %d: agent %s gets %s (%v) while %s holds it (%v)", position, id, name, mode, other, theirs)
		}
	}
	resource := [2]string{x.stacks[id], name}
	if position <= x.newest[resource] {
		x.t.Errorf("agent %s gets %s with the fencing number %d after %d", id, name, position, x.newest[resource])
	}
	x.Grants++
	x.newest[resource] = position
	key := [2]string{id, name}
	x.fences[key] = append(x.fences[key], position)
	if x.leases[id] == nil {
		x.leases[id] = make(map[string]agboxv1.LeaseMode)
	}
	x.leases[id][name] = mode
}

// enter notes the borders of an agent. One from before sandboxes were borders, whose event has
// none, is within that of its parent, or of its sandbox.
func (x *table) enter(id string, s *agboxv1.AgentSpawned) {
	if id == Root {
		return
	}
	roots := s.GetStackRoots()
	if len(roots) == 0 || !strings.Contains(roots[0], ":") {
		border := x.borders[s.GetParent()]
		if border == "" {
			border = "sandbox:" + s.GetSandboxId()
		}
		roots = append([]string{border}, roots...)
	}
	x.borders[id], x.stacks[id] = roots[0], roots[len(roots)-1]
}

// replayHold follows one event about holds.
func (x *table) replayHold(ev *agboxv1.AgentEvent) {
	x.t.Helper()
	id, unheld := ev.GetAgentId(), ev.GetPause().GetReason() == agboxv1.PauseReason_PAUSE_REASON_UNHELD
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_SPAWNED:
		x.parents[id] = ev.GetSpawned().GetParent()
		x.enter(id, ev.GetSpawned())
		x.holders[id] = make(map[string]bool)
		x.held[id] = ev.GetSpawned().GetLifetime() == agboxv1.AgentLifetime_AGENT_LIFETIME_HELD
		if x.held[id] && x.parents[id] != Root {
			x.holders[id]["agent:"+x.parents[id]] = true
		}
	case agboxv1.AgentEventType_AGENT_OPENED:
		if ev.GetHold().GetStream() == "" {
			x.holders[id][ev.GetHold().GetHolder()] = true
		}
	case agboxv1.AgentEventType_AGENT_CLOSED:
		if ev.GetHold().GetStream() == "" {
			if !x.holders[id][ev.GetHold().GetHolder()] {
				x.t.Errorf("position %d: %s ends its hold on agent %s, and has none", ev.GetPosition(), ev.GetHold().GetHolder(), id)
			}
			delete(x.holders[id], ev.GetHold().GetHolder())
		}
	case agboxv1.AgentEventType_AGENT_REPARENTED:
		from, to := "agent:"+x.parents[id], "agent:"+ev.GetReparent().GetParent()
		if x.parents[id] = ev.GetReparent().GetParent(); x.holders[id][from] {
			delete(x.holders[id], from)
			x.holders[id][to] = true
		}
	case agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED, agboxv1.AgentEventType_AGENT_PAUSED:
		if !unheld {
			return
		}
		if !x.held[id] || len(x.holders[id]) > 0 {
			x.t.Errorf("position %d: agent %s is suspended while it is held by %v", ev.GetPosition(), id, slices.Sorted(maps.Keys(x.holders[id])))
		}
		if ev.GetType() == agboxv1.AgentEventType_AGENT_PAUSED {
			x.Suspensions++
		}
	}
}

// String counts them.
func (c Claims) String() string {
	return fmt.Sprintf("%d grants, %d conflicts, %d expiries, %d suspensions", c.Grants, c.Conflicts, c.Expiries, c.Suspensions)
}
