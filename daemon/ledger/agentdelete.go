package ledger

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// DeleteAgent removes an agent that has ended, and the sandbox that was made for it. Its id stays
// taken. One that has children, that another agent is to follow, or in whose sandbox another agent
// runs on is refused.
func (l *Ledger) DeleteAgent(ctx context.Context, id string) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error { return t.delete() })
}

// DeleteAgentTree removes an agent and its descendants, which must have ended: all or none.
// It returns them, the agent first.
func (l *Ledger) DeleteAgentTree(ctx context.Context, id string) (removed []Agent, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		removed = nil
		return l.deleteTree(tx, id, &removed)
	})
	slices.Reverse(removed)
	return removed, err
}

// deleteTree removes the descendants of an agent before the agent.
func (l *Ledger) deleteTree(tx *store.Tx, id string, removed *[]Agent) error {
	if a := l.agentIn(tx, id); !a.Exists() || !a.Over() {
		_, err := l.withinAgent(tx, id, func(t *agentTxn) error { return t.delete() })
		return err // says why it cannot be removed
	}
	for _, child := range l.childrenIn(tx, id) {
		if err := l.deleteTree(tx, child.ID, removed); err != nil {
			return err
		}
	}
	a, err := l.withinAgent(tx, id, func(t *agentTxn) error { return t.delete() })
	*removed = append(*removed, a)
	return err
}

// childrenIn returns the children of an agent at this point of the write order.
func (l *Ledger) childrenIn(tx *store.Tx, id string) []Agent {
	list := l.among(tx, l.Children(id), func(a Agent) bool { return a.Parent == id && !a.Deleted })
	return slices.CompactFunc(oldestFirst(list), func(a, b Agent) bool { return a.ID == b.ID })
}

// followersIn returns the agents that still wait for the end of an agent, at this point of the
// write order.
func (l *Ledger) followersIn(tx *store.Tx, id string) []Agent {
	return l.among(tx, l.Followers(id), func(a Agent) bool { return follows(a) && slices.Contains(a.After, id) })
}

func (t *agentTxn) delete() error {
	switch {
	case !t.a.Exists() || t.a.Deleted:
		return agentNotFound(t.id)
	case t.id == agents.Init:
		return isRoot()
	case !t.a.Over():
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"Agent %s is %s and cannot be removed; \"agbox agent kill %s\" ends it.", t.a.Called(), t.a.Word(), t.a.Called()).With("agent_id", t.id)
	}
	if err := errors.Join(t.hasNoChildren(), t.hasNoFollowers(), t.hasNoGuests()); err != nil {
		return err
	}
	if t.a.Owned {
		if err := t.l.wantDeleted(t.tx, t.a.SandboxID); err != nil {
			return err
		}
	}
	if err := t.charge(); err != nil {
		return err
	}
	return t.append(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_DELETED})
}

// hasNoChildren refuses the removal of a parent: its children are removed before it.
func (t *agentTxn) hasNoChildren() error {
	children := t.l.childrenIn(t.tx, t.id)
	if len(children) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_HAS_CHILDREN,
		"Agent %s has children: %s. Remove them first, or remove the whole tree with \"agbox agent rm --cascade %s\".",
		t.a.Called(), naming(children), t.a.Called()).With("agent_id", t.id)
}

// hasNoFollowers refuses the removal of an agent whose end another one still has to see.
func (t *agentTxn) hasNoFollowers() error {
	followers := t.l.followersIn(t.tx, t.id)
	if len(followers) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is followed by agents that have not begun: %s. Wait for them, or end them with \"agbox agent kill\".",
		t.a.Called(), naming(followers)).With("agent_id", t.id)
}

// hasNoGuests refuses the removal of an agent whose own sandbox would go with it while other
// agents there have not ended. They end anyway with one that is being removed.
func (t *agentTxn) hasNoGuests() error {
	if sb, exists := t.l.sandboxIn(t.tx, t.a.SandboxID); !t.a.Owned || !exists || wantsDeleted(sb.Record) {
		return nil
	}
	guests := t.l.agentsIn(t.tx, t.a.SandboxID)
	if len(guests) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS,
		"In sandbox %s, which was made for agent %s, there are agents that have not ended: %s. Wait for them, or end them with \"agbox agent kill\".",
		t.a.SandboxID, t.a.Called(), naming(guests)).With("agent_id", t.id)
}

// charge tells the parent of an agent that is removed what it and those below it have used,
// which else would be forgotten with it.
func (t *agentTxn) charge() error {
	if t.a.Parent == agents.Init {
		return nil
	}
	gone := agents.Taken(t.a.Record, agents.Budget{}, gate.Amount{})
	if gone == (gate.Amount{}) {
		return nil
	}
	_, err := t.l.withinAgent(t.tx, t.a.Parent, func(p *agentTxn) error {
		if !p.a.Exists() || p.a.Deleted {
			return errNothing
		}
		gone := gone.Plus(p.a.UsedByFormer())
		return p.append(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_CHILD_DELETED,
			Details: &agboxv1.AgentEvent_FormerChildren{FormerChildren: &agboxv1.AgentFormerChildren{
				Used: &agboxv1.AgentUsage{InputTokens: gone.InputTokens, CostMicroUsd: gone.CostMicroUSD},
			}},
		})
	})
	return err
}
