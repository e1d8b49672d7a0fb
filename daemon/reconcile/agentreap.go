package reconcile

import (
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
)

// ReapAgents schedules rounds of all agents about which something may be left to do, and
// removes the files that ended agents have left. It returns how many of both there are.
func (l *Loop) ReapAgents() (agents, files int) {
	for _, a := range l.ledger.Agents(func(a ledger.Agent) bool { return a.ID != agent.Init }) {
		if !a.Over() || a.Owned {
			l.EnqueueAgent(a.ID)
			agents++
		}
		if a.Over() {
			files += l.removeLeft(a)
		}
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
	return agents, files
}

// removeLeft removes the files that an agent that has ended has left.
func (l *Loop) removeLeft(a ledger.Agent) int {
	removed, err := l.agents.RemoveLeft(a)
	if err != nil {
		l.log.Warn("files of an agent that has ended cannot be removed", "agent_id", a.ID, "error", err)
	}
	return removed
}
