package ledger

import (
	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/fault"
)

// agentSets has a set of agents for each id.
type agentSets map[string]map[string]struct{}

func (s agentSets) add(key, agentID string) {
	if s[key] == nil {
		s[key] = make(map[string]struct{})
	}
	s[key][agentID] = struct{}{}
}

func (s agentSets) remove(key, agentID string) {
	delete(s[key], agentID)
	if len(s[key]) == 0 {
		delete(s, key)
	}
}

// placeLocked adds an agent to the children of its parent, and removes it from those of the
// parent that it had before.
func (b *agentBook) placeLocked(before, after Agent) {
	if before.Exists() && (before.Parent != after.Parent || after.Deleted) {
		b.children.remove(before.Parent, before.ID)
	}
	if after.ID != agent.Init && !after.Deleted {
		b.children.add(after.Parent, after.ID)
	}
}

// Children returns the children of an agent that are not removed, oldest first.
func (l *Ledger) Children(id string) []Agent {
	l.agents.mu.RLock()
	var list []Agent
	for child := range l.agents.children[id] {
		list = append(list, l.agents.all[child])
	}
	l.agents.mu.RUnlock()
	return oldestFirst(list)
}

// mayHaveChild refuses a child of an agent that has ended or does not exist.
func (t *agentTxn) mayHaveChild(parent string) error {
	if parent == "" || parent == agent.Init {
		return nil
	}
	switch p := t.l.agentIn(t.tx, parent); {
	case !p.Exists() || p.Deleted:
		return agentNotFound(parent)
	case p.Over():
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"Agent %s is %s and can have no more children.", parent, p.Word()).With("agent_id", parent)
	}
	return nil
}
