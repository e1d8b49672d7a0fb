package reconcile

import (
	"context"
	"maps"
	"slices"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
)

// dispatchAgents is a phase of the resync. It enqueues agents without an incarnation that
// have not ended, for which the agents that they follow may have completed, or whose sandbox
// or time may have come.
func (l *Loop) dispatchAgents(context.Context, *fullLook) error {
	for _, a := range l.dispatched.next(l.ledger.Idle()) {
		l.EnqueueAgent(a.ID)
	}
	return nil
}

// cleanUpAgents is a phase of the resync. It enqueues agents whose incarnation may have
// ended, and those that have ended and whose sandbox may have to go, and removes the files
// that ended agents have left.
func (l *Loop) cleanUpAgents(context.Context, *fullLook) error {
	for _, a := range slices.Concat(l.cleanedUp.next(l.ledger.AtWork()), l.keptAfter.next(l.ledger.Undone())) {
		l.EnqueueAgent(a.ID)
	}
	l.removeAllLeft(false)
	l.forgetDeleted()
	return nil
}

// reparentAgents is a phase of the resync. It enqueues the agents whose parent has ended.
func (l *Loop) reparentAgents(context.Context, *fullLook) error {
	for _, id := range l.ledger.Stranded() {
		l.EnqueueAgent(id)
	}
	return nil
}

// enqueueAgents enqueues all agents about which something may be left to do, and returns their
// number.
func (l *Loop) enqueueAgents() int {
	undone := l.ledger.Undone()
	for _, a := range undone {
		l.EnqueueAgent(a.ID)
	}
	return enqueueEach(l, l.ledger.Living()) + len(undone)
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
// number. It looks only once for those of an ended agent and for those of unknown ones, unless
// again is set.
func (l *Loop) removeAllLeft(again bool) (files int) {
	ended := l.ledger.Untidy()
	if again {
		ended = l.ledger.Agents(func(a ledger.Agent) bool { return a.ID != agents.Init && a.Over() })
	}
	for _, a := range ended {
		files += l.removeLeft(a)
	}
	if again || !l.strayMetasGone.Load() {
		files += l.removeStrayMetas()
	}
	return files
}

// removeStrayMetas removes the files of agents that do not exist, and returns their number. Only
// a daemon that was killed, or lost its database, has left any.
func (l *Loop) removeStrayMetas() (files int) {
	failed := false
	for _, id := range l.agents.Metas() {
		if _, exists := l.ledger.Agent(id); exists {
			continue
		}
		removed, err := l.agents.RemoveMeta(id)
		if err != nil {
			failed = true
			l.log.Warn("meta.json of an agent that is gone cannot be removed", "agent_id", id, "error", err)
		}
		if removed {
			files++
		}
	}
	l.strayMetasGone.Store(!failed)
	return files
}

// removeLeft removes the files that an agent that has ended has left.
func (l *Loop) removeLeft(a ledger.Agent) int {
	removed, err := l.agents.RemoveLeft(a)
	if err != nil {
		l.log.Warn("files of an agent that has ended cannot be removed", "agent_id", a.ID, "error", err)
		l.strayMetasGone.Store(false) // it may be deleted before the next try
	}
	if err == nil {
		l.ledger.Tidied(a.ID)
	}
	return removed
}
