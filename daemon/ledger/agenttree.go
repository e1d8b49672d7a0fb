package ledger

import (
	"slices"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// placeLocked updates the sets of the agent's parent and of the agents that it follows.
func (b *agentBook) placeLocked(before, after Agent) {
	if before.Exists() && (before.Parent != after.Parent || after.Deleted) {
		b.children.remove(before.Parent, before.ID)
	}
	if after.ID != agents.Init && !after.Deleted {
		b.children.add(after.Parent, after.ID)
	}
	for _, id := range after.After {
		if follows(after) {
			b.followers.add(id, after.ID)
		} else {
			b.followers.remove(id, after.ID)
		}
	}
}

// follows reports whether an agent still waits for others before it begins.
func follows(a Agent) bool { return a.Incarnations == 0 && !a.Over() && !a.Deleted }

// Children returns the children of an agent that are not removed, oldest first.
func (l *Ledger) Children(id string) []Agent {
	return l.agents.among(l.agents.children, id)
}

// Ancestors returns the ancestors of an agent that are not removed, its parent first, without
// init. A tree is at most so deep, so damaged records that name each other end too.
func (l *Ledger) Ancestors(id string) (list []Agent) {
	a, exists := l.Agent(id)
	for exists && len(list) < maxDepth {
		if a, exists = l.Agent(a.Parent); !exists || a.ID == agents.Init {
			break
		}
		list = append(list, a)
	}
	return list
}

// Followers returns the agents that an agent must be COMPLETED for before they begin, oldest
// first.
func (l *Ledger) Followers(id string) []Agent {
	return l.agents.among(l.agents.followers, id)
}

// Kin returns what an agent must know of its parent and of the agents that it follows.
func (l *Ledger) Kin(a Agent) agents.Kin {
	var kin agents.Kin
	if a.Parent != agents.Init {
		parent, _ := l.Agent(a.Parent)
		kin = agents.KinOf(parent.Record, nearestLiving(l.Agent, a))
	}
	if !follows(a) {
		return kin
	}
	for _, id := range a.After {
		other, _ := l.Agent(id)
		kin.Await(id, other.Record)
	}
	return kin
}

// nearestLiving returns the id of the nearest ancestor that has not ended, at last
// agent.Init.
func nearestLiving(find func(id string) (Agent, bool), a Agent) string {
	for id := a.Parent; id != agents.Init; {
		p, exists := find(id)
		if !exists {
			break
		}
		if !p.Over() {
			return id
		}
		id = p.Parent
	}
	return agents.Init
}

// heirIn is nearestLiving at this point of the write order.
func (l *Ledger) heirIn(tx *store.Tx, a Agent) string {
	return nearestLiving(func(id string) (Agent, bool) {
		p := l.agentIn(tx, id)
		return p, p.Exists() && !p.Deleted
	}, a)
}

// adopt gives the agent a living parent before its end, if it has none, so that its end is
// told to one that can learn of it.
func (t *agentTxn) adopt(agentID string) error {
	heir := t.l.heirIn(t.tx, t.a)
	if heir == t.a.Parent || t.a.Over() {
		return nil
	}
	return t.append(agentID, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: heir, From: t.a.Parent}},
	})
}

// toFollow returns the ids of the agents that a new one is to follow. Its description has
// their ids or names.
func (t *agentTxn) toFollow(refs []string) (ids []string, err error) {
	for _, ref := range refs {
		a, known := t.l.Agent(ref)
		if !known {
			a, _ = t.l.agentNamed(ref)
		}
		switch {
		case ref == agents.Init && !known:
			return nil, isRoot()
		case !a.Exists():
			return nil, agentNotFound(ref)
		case a.ID == agents.Init:
			return nil, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"Agent %s never ends, so no agent can follow it: leave it out of \"after\".", agents.Init)
		case t.l.agentIn(t.tx, a.ID).Deleted:
			return nil, agentNotFound(ref)
		case !slices.Contains(ids, a.ID):
			ids = append(ids, a.ID)
		}
	}
	return ids, nil
}

// The bounds of agents that have not ended. Those of the tree do not bound the children of
// init.
const (
	maxAgents          = 1000
	maxAgentsInSandbox = 256
	maxChildren        = 256
	maxDepth           = 8
)

// mayHaveChild refuses a child of an agent that has ended or does not exist, one too many,
// and one too deep in the tree.
func (t *agentTxn) mayHaveChild(n NewAgent) error {
	parent := n.Parent
	if parent == "" || parent == agents.Init {
		return nil
	}
	switch p := t.l.agentIn(t.tx, parent); {
	case !p.Exists() || p.Deleted:
		return agentNotFound(parent)
	case p.Over():
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"Agent %s is %s and can have no more children.", parent, p.Word()).With("agent_id", parent)
	case p.Depth >= maxDepth:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Agent %s is %d levels below the root, and no agent may be deeper: let its parent spawn the child.", parent, maxDepth).With("agent_id", parent)
	}
	most, living := maxChildren, len(t.l.livingChildrenIn(t.tx, parent))
	if n.MaxChildren > 0 {
		most = min(most, n.MaxChildren)
	}
	if living >= most {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Agent %s has %d children that have not ended, which is the limit: wait for one, or end one.", parent, living).With("agent_id", parent)
	}
	return nil
}
