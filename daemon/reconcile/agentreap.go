package reconcile

import (
	"context"
	"maps"
	"slices"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
)

// dispatchAgents is a phase of the resync. It enqueues the agents without an incarnation that
// have not ended, for which the agents that they follow may have completed, or whose sandbox
// or time may have come.
func (l *Loop) dispatchAgents(context.Context, *fullLook) error {
	enqueueEach(l, l.ledger.Living(), func(a ledger.Agent) bool { return a.Incarnation == nil })
	return nil
}

// cleanUpAgents is a phase of the resync. It enqueues the agents whose incarnation may have
// ended, and those that have ended and whose sandbox may have to go, and removes the files
// that ended agents have left.
func (l *Loop) cleanUpAgents(context.Context, *fullLook) error {
	enqueueEach(l, l.ledger.Living(), func(a ledger.Agent) bool { return a.Incarnation != nil })
	l.enqueueEnded()
	l.removeAllLeft(false)
	l.forgetDeleted()
	return nil
}

// reparentAgents is a phase of the resync. It enqueues the agents whose parent has ended.
func (l *Loop) reparentAgents(context.Context, *fullLook) error {
	enqueueEach(l, l.ledger.Living(), func(a ledger.Agent) bool { return l.ledger.Kin(a).ParentOver })
	return nil
}

// enqueueEach enqueues those of some agents that fit, and returns their number.
func enqueueEach(l *Loop, agents []ledger.Agent, fits func(ledger.Agent) bool) (n int) {
	for _, a := range agents {
		if fits(a) {
			l.EnqueueAgent(a.ID)
			n++
		}
	}
	return n
}

// enqueueAgents enqueues all agents about which something may be left to do, and returns their
// number.
func (l *Loop) enqueueAgents() int {
	return enqueueEach(l, l.ledger.Living(), func(ledger.Agent) bool { return true }) + l.enqueueEnded()
}

// enqueueEnded enqueues the ended agents about whose sandbox something may be left to do, and
// returns their number.
func (l *Loop) enqueueEnded() (n int) {
	for _, sb := range l.ledger.Sandboxes() {
		n += enqueueEach(l, l.ledger.AgentsIn(sb.ID), func(a ledger.Agent) bool { return a.Over() })
	}
	return n
}

// ReapAgents schedules rounds of all agents about which something may be left to do, and
// removes the files that ended agents have left. It returns how many of both there are.
func (l *Loop) ReapAgents() (agents, files int) {
	return l.enqueueAgents(), l.removeAllLeft(true)
}

// forgetDeleted drops what the loop knows of agents that are deleted. One that ended long ago
// has no round any more that would.
func (l *Loop) forgetDeleted() {
	l.mu.Lock()
	known := slices.Collect(maps.Keys(l.agentsAtWork))
	l.mu.Unlock()
	for _, id := range known {
		if _, exists := l.ledger.Agent(id); !exists {
			l.forgetAgent(id)
		}
	}
}

// removeAllLeft removes the files that ended and unknown agents have left, and returns their
// number. It looks only once for those of an ended agent, unless again is set.
func (l *Loop) removeAllLeft(again bool) (files int) {
	ended := l.ledger.Untidy()
	if again {
		ended = l.ledger.Agents(func(a ledger.Agent) bool { return a.ID != agent.Init && a.Over() })
	}
	for _, a := range ended {
		files += l.removeLeft(a)
	}
	for _, id := range l.agents.Metas() {
		if _, exists := l.ledger.Agent(id); exists {
			continue
		}
		removed, err := l.agents.RemoveMeta(id)
		if err != nil {
			l.log.Warn("meta.json of an agent that is gone cannot be removed", "agent_id", id, "error", err)
		}
		if removed {
			files++
		}
	}
	return files
}

// removeLeft removes the files that an agent that has ended has left.
func (l *Loop) removeLeft(a ledger.Agent) int {
	removed, err := l.agents.RemoveLeft(a)
	if err != nil {
		l.log.Warn("files of an agent that has ended cannot be removed", "agent_id", a.ID, "error", err)
	}
	if err == nil {
		l.ledger.Tidied(a.ID)
	}
	return removed
}
