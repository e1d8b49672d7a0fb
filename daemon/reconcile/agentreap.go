package reconcile

import (
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
)

// ReapAgents schedules rounds of all agents about which something may be left to do, and
// removes the files that ended agents have left. It returns how many of both there are.
func (l *Loop) ReapAgents() (agents, files int) {
	for _, a := range l.ledger.Agents(func(a ledger.Agent) bool { return a.ID != agent.Init && (!a.Over() || a.Owned) }) {
		l.EnqueueAgent(a.ID)
		agents++
	}
	for _, id := range l.agents.Metas() {
		if a, exists := l.ledger.Agent(id); exists && !a.Over() {
			continue
		}
		if l.removeMeta(id) {
			files++
		}
	}
	return agents, files
}
