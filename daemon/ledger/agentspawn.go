package ledger

import (
	"cmp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// stackOf returns the innermost stack of a new agent and the borders that it is within, outermost
// first.
func (t *agentTxn) stackOf(n NewAgent) (name string, roots []string, err error) {
	if ofInit(n) {
		name, roots, err = t.reached(n)
	} else {
		parent := t.l.agentIn(t.tx, n.Parent)
		name, roots = parent.Stack, slices.Clone(parent.StackRoots)
	}
	if own := agents.StackOf(n.Spec).Name; own != "" {
		name, roots = own, append(roots, n.ID)
	}
	return name, roots, err
}

// reached returns the innermost stack and the borders of an agent that a user spawns.
func (t *agentTxn) reached(n NewAgent) (name string, roots []string, err error) {
	kind, of, _ := strings.Cut(n.Reach, ":")
	switch {
	case n.Reach == "":
		return "", []string{t.borderOf(n.SandboxID)}, nil
	case n.Reach == agents.AllReached:
		return "", []string{agents.Everywhere}, nil
	case kind == "stack":
		root, err := t.rootOf(of)
		return root.Stack, slices.Clone(root.StackRoots), err
	}
	if sb, exists := t.l.sandboxIn(t.tx, of); !exists || !sb.Exists() {
		return "", nil, notFound(of)
	}
	return "", []string{t.borderOf(of)}, nil
}

// borderOf returns the border of a sandbox. That of one which was made for an agent is the border
// of that agent, which may have another sandbox by now, or have been spawned from one.
func (t *agentTxn) borderOf(sandboxID string) string {
	spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
	for _, a := range append(t.l.AgentsIn(sandboxID), spawned...) {
		if a = t.l.agentIn(t.tx, a.ID); a.Owned && a.SandboxID == sandboxID && a.World() != "" {
			return a.World()
		}
	}
	return agents.SandboxBorder(sandboxID)
}

// rootOf finds the root of a stack that has not ended, by the name of the stack or its own id.
func (t *agentTxn) rootOf(ref string) (Agent, error) {
	var named []Agent
	spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
	for _, a := range append(t.l.Living(), spawned...) {
		switch a = t.l.agentIn(t.tx, a.ID); {
		case a.Over() || a.StackRoot() != a.ID:
		case a.ID == ref:
			return a, nil
		case a.Stack == ref && !slices.ContainsFunc(named, func(b Agent) bool { return b.ID == a.ID }):
			named = append(named, a)
		}
	}
	switch len(named) {
	case 0:
		return Agent{}, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
			"No stack %q has a root that has not ended: spawn that first, with --stack.", ref)
	case 1:
		return named[0], nil
	}
	return Agent{}, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
		"There are %d stacks %q, for example of the agents %s and %s: give the id of the root instead of the name.", len(named), ref, named[0].ID, named[1].ID)
}

// mayJoinStacks refuses an agent for which one of the stacks that it comes into has no room.
func (t *agentTxn) mayJoinStacks(roots []string) error {
	for _, root := range roots {
		rules := agents.StackOf(t.l.agentIn(t.tx, root).Spec)
		if rules.Agents == 0 {
			continue
		}
		living := 0
		spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
		for _, a := range append(t.l.agents.among(t.l.agents.index.livingUnder, root), spawned...) {
			if a = t.l.agentIn(t.tx, a.ID); !a.Over() && slices.Contains(a.StackRoots, root) {
				living++
			}
		}
		if living >= rules.Agents {
			return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
				"Stack %s has %d agents that have not ended, which is its limit: wait for one, or end one.", rules.Name, living).With("agent_id", root)
		}
	}
	return nil
}

// mayReach refuses a message of an agent that would cross a border. One to an agent within the
// border of another sandbox is refused like one to an agent that does not exist.
func (l *Ledger) mayReach(tx *store.Tx, sender Agent, to string) error {
	recipient := l.agentIn(tx, to)
	if !recipient.Exists() && to != agents.Init {
		return nil // that is said by deliver
	}
	if to == agents.Init {
		recipient.ID = agents.Init
	}
	switch {
	case sender.Reaches(recipient.Record, l.livingParent(tx, sender)):
		return nil
	case to != agents.Init && sender.World() != recipient.World():
		return recipientNotFound(to)
	}
	return fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_STACK_BORDER,
		"Agent %s is beyond the border of a stack, which only the root of the stack and its parent reach across: send it to \"parent\".", to).With("agent_id", to)
}

// hasInboxRoom refuses a message of an agent if the inboxes of a stack that its recipient is in
// have no room for it.
func (l *Ledger) hasInboxRoom(tx *store.Tx, to Agent, m *agboxv1.AgentMessage) error {
	for _, root := range to.StackRoots {
		rules := agents.StackOf(l.agentIn(tx, root).Spec)
		if rules.InboxBytes == 0 {
			continue
		}
		if used := l.stackBytesIn(tx, root) + messageSize(m); uint64(used) > rules.InboxBytes {
			return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_INBOX_FULL,
				"The agents of stack %s may have %d bytes of messages that they have not read, and there is no room for this one: try again when they have read some.",
				rules.Name, rules.InboxBytes).With("agent_id", to.ID)
		}
	}
	return nil
}

// InStack reports whether the agent is in a stack with that name.
func (l *Ledger) InStack(a Agent, name string) bool {
	return slices.ContainsFunc(a.StackRoots, func(root string) bool {
		r, _ := l.Agent(root)
		return agents.StackOf(r.Spec).Name == name
	})
}

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
