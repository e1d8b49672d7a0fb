package ledger

import (
	"cmp"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// allot gives a new agent a part of the budget of its parent, if that is not agent.Init. The
// part is its own until it ends; what it has not used then is its parent's again. Nothing of
// this is stored but the budget in its spec: the records say the rest.
func (t *agentTxn) allot(n NewAgent) (*agboxv1.AgentSpec, error) {
	if ofInit(n) {
		return n.Spec, nil
	}
	parent := t.l.agentIn(t.tx, n.Parent)
	budget := agents.RulesOf(parent.Spec).Budget
	given, problem := agents.ChildBudget(budget, agents.Left(parent.Record, budget, t.l.takenIn(t.tx, n.Parent)), t.shares(n), wanted(n.Spec))
	if problem != "" {
		return nil, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_BUDGET_EXHAUSTED, "Of the budget of agent %s, %s", n.Parent, problem).With("agent_id", n.Parent)
	}
	spec := proto.CloneOf(n.Spec)
	spec.Budget = given
	return agents.WithinStack(spec), nil
}

// wanted is the budget that an agent is to have. If it is the root of a stack, it wants no
// more than that may cost, but without a wish it gets a share like any other child.
func wanted(spec *agboxv1.AgentSpec) *agboxv1.AgentBudget {
	if spec.GetBudget().GetCostUsd() == "" {
		return spec.GetBudget()
	}
	return &agboxv1.AgentBudget{InputTokens: spec.GetBudget().InputTokens, CostUsd: agents.WithinStack(spec).GetBudget().GetCostUsd()}
}

// ofInit reports whether a new agent is a child of agent.Init.
func ofInit(n NewAgent) bool { return cmp.Or(n.Parent, agents.Init) == agents.Init }

// shares is among how many what is left of the budget of a parent is divided: the children
// that it may still have, with the new one, and itself.
func (t *agentTxn) shares(n NewAgent) int {
	return max(cmp.Or(n.MaxChildren, maxChildren)+1-len(t.l.livingChildrenIn(t.tx, n.Parent)), 1)
}

// takenIn is what the children of an agent take of its budget at this point of the write order.
// Only ended children may have changed in the same batch without being counted anew: one that
// was removed counts twice until the commit, so no more is given than there is.
func (l *Ledger) takenIn(tx *store.Tx, id string) gate.Amount {
	sum := l.agents.spentBelow(id)
	spawned, _ := tx.Value(spawnOverlay{}).([]Agent)
	for _, c := range append(l.LivingChildren(id), spawned...) {
		if c = l.agentIn(tx, c.ID); c.Parent == id && !c.Deleted {
			sum = sum.Plus(agents.Taken(c.Record, agents.RulesOf(c.Spec).Budget, l.takenIn(tx, c.ID)))
		}
	}
	return sum
}

// ChildrenBudget is what the children of an agent have of its budget, or have used of it.
func (l *Ledger) ChildrenBudget(a Agent) gate.Amount {
	former := a.FormerChildren.GetUsed()
	return l.agents.taken(a.ID).Plus(gate.Amount{InputTokens: former.GetInputTokens(), CostMicroUSD: former.GetCostMicroUsd()})
}

// SpentByChildren is the part of ChildrenBudget that ended children have used. It does not
// come back to the agent.
func (l *Ledger) SpentByChildren(a Agent) gate.Amount {
	former := a.FormerChildren.GetUsed()
	return l.agents.spentBelow(a.ID).Plus(gate.Amount{InputTokens: former.GetInputTokens(), CostMicroUSD: former.GetCostMicroUsd()})
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
		former := p.a.FormerChildren.GetUsed()
		gone := gone.Plus(gate.Amount{InputTokens: former.GetInputTokens(), CostMicroUSD: former.GetCostMicroUsd()})
		return p.append(p.a.ID, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_CHILD_DELETED,
			Details: &agboxv1.AgentEvent_FormerChildren{FormerChildren: &agboxv1.AgentFormerChildren{
				Used: &agboxv1.AgentUsage{InputTokens: gone.InputTokens, CostMicroUsd: gone.CostMicroUSD},
			}},
		})
	})
	return err
}
