package ledger

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// NewAgent is what SpawnAgent accepts.
type NewAgent struct {
	// ID must be new. Name may be empty.
	ID, Name string
	// Parent is the agent that spawns it, which must live. Empty means agent.Init.
	Parent string
	// MaxChildren bounds the children of the parent that have not ended, with this one. 0 means
	// only the bound of all agents.
	MaxChildren int
	// MaxSandboxes bounds the sandboxes that were made for agents of its tree, with its own if
	// that is Derived.
	MaxSandboxes int
	// Spec has the budget that is wanted. A child of an agent gets a part of the budget of that.
	Spec *agboxv1.AgentSpec
	// Reach says for one that a user spawns which border it is within: "sandbox:ID", "stack:NAME",
	// agent.AllReached, or empty for that of its sandbox.
	Reach string
	// SandboxID is an existing sandbox or, if Own is set, the id for a new one.
	SandboxID string
	Own       *agboxv1.CreateSpec
	// Work is the content of the spec's work, or nil.
	Work []byte
	// FromAgent and FromCheckpoint are whose work it continues, and Checkpoint is its copy of
	// that, whose file exists. All are unset if it continues none.
	FromAgent      string
	FromCheckpoint uint64
	Checkpoint     *agboxv1.AgentCheckpoint
	// Holder is its first holder beside its parent, whose hold lingers for Linger. It may be
	// empty.
	Holder string
	Linger time.Duration
}

// SpawnAgent accepts an agent and, if it gets an own one, its sandbox: both are one
// transaction. An id that was used for the same agent returns that one.
func (l *Ledger) SpawnAgent(ctx context.Context, n NewAgent) (Agent, error) {
	nonce, shown := ids.New(), (*agboxv1.CreateSpec)(nil)
	if n.Own != nil {
		var err error
		if shown, err = l.hide(ctx, n.SandboxID, n.Own); err != nil {
			return Agent{}, err
		}
	}
	if ofInit(n) {
		n.Spec = agents.WithinStack(n.Spec)
	}
	a, err := l.updateAgent(ctx, n.ID, func(t *agentTxn) error {
		if n.ID != agents.Init && t.tx.AgentReserved(n.ID) {
			return t.sameAgent(n)
		}
		stack, roots, err := t.stackOf(n)
		if err != nil {
			return err
		}
		if err := errors.Join(t.mayspawn(n, roots), t.mayHaveChild(n)); err != nil {
			return err
		}
		if err := errors.Join(t.mayJoinStacks(roots), t.mayHaveSandbox(n)); err != nil {
			return err
		}
		spec, err := t.allot(n)
		if err != nil {
			return err
		}
		if err := t.place(n, nonce, shown); err != nil {
			return err
		}
		if err := t.tx.ReserveAgent(n.ID, l.now()); err != nil {
			return err
		}
		if err := t.tx.PutAgentConfig(n.ID, spec); err != nil {
			return err
		}
		if n.Work != nil {
			if err := t.tx.PutAgentWork(n.ID, n.Work); err != nil {
				return err
			}
		}
		t.a.Spec = spec
		after, err := t.toFollow(n.Spec.GetAfter())
		if err != nil {
			return err
		}
		err = t.append(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_SPAWNED,
			Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{
				Name: n.Name, Class: n.Spec.GetClass(), Parent: cmp.Or(n.Parent, agents.Init), SandboxId: n.SandboxID, Owned: n.Own != nil,
				FromAgent: n.FromAgent, FromCheckpoint: n.FromCheckpoint, Checkpoint: n.Checkpoint,
				After:    after,
				Lifetime: n.Spec.GetLifetime(),
				Depth:    t.l.agentIn(t.tx, n.Parent).Depth + 1,
				Stack:    stack, StackRoots: roots, Reach: n.Reach,
				Tree: t.treeOf(n),
			}},
		})
		if err == nil && n.Holder != "" {
			err = t.open(n.Holder, n.Linger)
		}
		t.tx.SetValue(spawnOverlay{}, append(slices.Clip(spawnedIn(t.tx)), t.a))
		if err == nil {
			t.countSandbox(n)
		}
		return err
	})
	if err != nil {
		return a, errors.Join(err, l.unmake(n, err))
	}
	return a, nil
}

// sameAgent decides about an id that is taken.
func (t *agentTxn) sameAgent(n NewAgent) error {
	if t.a.Reach == n.Reach && t.a.Exists() && t.a.Name == n.Name && t.a.SandboxID == n.SandboxID && t.a.Owned == (n.Own != nil) &&
		t.a.FromAgent == n.FromAgent && t.a.FromCheckpoint == n.FromCheckpoint && proto.Equal(t.a.Spec, n.Spec) {
		return errNothing
	}
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS,
		"The agent id %q was used by another request, and ids are never reused; choose another or leave it out.", n.ID).With("agent_id", n.ID)
}

// mayspawn checks name and bounds against committed agents and those of the batch. A name is taken
// within the border of a sandbox, and among the agents of users: what runs within one border
// neither takes a name from others nor learns theirs.
func (t *agentTxn) mayspawn(n NewAgent, roots []string) error {
	if n.ID == agents.Init || n.Name == agents.Init {
		return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS,
			"The id and the name %q belong to the root of all agents; choose another.", agents.Init).With("agent_id", agents.Init)
	}
	book, index := &t.l.agents, &t.l.agents.index
	spawned := spawnedIn(t.tx)
	living, inSandbox := book.count(index.living, atWork, idle)+len(spawned), book.count(index.livingIn, n.SandboxID)
	for _, a := range spawned {
		if a.SandboxID == n.SandboxID {
			inSandbox++
		}
	}
	world := agents.Record{StackRoots: roots}.World()
	for _, a := range append(book.among(index.named, n.Name), spawned...) {
		if n.Name != "" && a.Name == n.Name && !a.Over() && (a.World() == world || a.OfUser() && ofInit(n)) {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS,
				"Agent %s already has the name %q; choose another name, or end that agent.", a.ID, n.Name).With("agent_id", a.ID)
		}
	}
	switch {
	case living >= maxAgents:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"There are %d agents already, which is the limit; end some first.", maxAgents)
	case inSandbox >= maxAgentsInSandbox:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Sandbox %s has %d agents already, which is the limit; use another sandbox.", n.SandboxID, maxAgentsInSandbox)
	}
	return nil
}

// place accepts the agent's own sandbox, or checks the one that it is to run in.
func (t *agentTxn) place(n NewAgent, nonce string, shown *agboxv1.CreateSpec) error {
	if n.Own != nil {
		_, err := t.l.within(t.tx, n.SandboxID, func(s *txn) error { return s.create(nonce, n.Own, shown, RequestKey{}) })
		return err
	}
	sb, ok := t.l.sandboxIn(t.tx, n.SandboxID)
	switch {
	case !ok || !sb.Exists():
		return notFound(n.SandboxID)
	case sb.Want == machine.WantDeleted:
		return NotReady(sb.Record)
	}
	return nil
}

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
	for _, a := range append(t.l.AgentsIn(sandboxID), spawnedIn(t.tx)...) {
		if a = t.l.agentIn(t.tx, a.ID); a.Owned && a.SandboxID == sandboxID && a.World() != "" {
			return a.World()
		}
	}
	return agents.SandboxBorder(sandboxID)
}

// rootOf finds the root of a stack that has not ended, by the name of the stack or its own id.
func (t *agentTxn) rootOf(ref string) (Agent, error) {
	var named []Agent
	for _, a := range append(t.l.Living(), spawnedIn(t.tx)...) {
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
		below := t.l.agents.among(t.l.agents.index.livingUnder, root)
		living := len(t.l.among(t.tx, below, func(a Agent) bool { return !a.Over() && slices.Contains(a.StackRoots, root) }))
		if living >= rules.Agents {
			return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
				"Stack %s has %d agents that have not ended, which is its limit: wait for one, or end one.", rules.Name, living).With("agent_id", root)
		}
	}
	return nil
}

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

// treeOverlay is the key of the number of sandboxes that a batch has accepted for a tree.
type treeOverlay struct{ tree string }

// treeOf is the tree of a new agent.
func (t *agentTxn) treeOf(n NewAgent) string {
	if ofInit(n) {
		return n.ID
	}
	return topOf(t.l.agentIn(t.tx, n.Parent), func(id string) (Agent, bool) {
		a := t.l.agentIn(t.tx, id)
		return a, a.Exists()
	})
}

// mayHaveSandbox refuses a sandbox that an agent has asked for from inside if its tree has as
// many as it may have. One that is being removed counts until it is gone.
func (t *agentTxn) mayHaveSandbox(n NewAgent) error {
	tree := n.Own.GetDerived().GetTree()
	if tree == "" {
		return nil
	}
	there := t.l.sandboxesOfTree(tree)
	accepted, _ := t.tx.Value(treeOverlay{tree}).(int)
	if there+accepted < n.MaxSandboxes {
		return nil
	}
	return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
		"The agents of this tree have %d sandboxes of their own and may have %d (may_spawn.sandboxes): wait until one is removed, after the end of its agent, or spawn the agent with the sandbox \"shared\".",
		there+accepted, n.MaxSandboxes).With("agent_id", tree)
}

// countSandbox remembers an accepted sandbox until the batch is committed.
func (t *agentTxn) countSandbox(n NewAgent) {
	if tree := n.Own.GetDerived().GetTree(); tree != "" {
		accepted, _ := t.tx.Value(treeOverlay{tree}).(int)
		t.tx.SetValue(treeOverlay{tree}, accepted+1)
	}
}

// unmake erases the key of a derived sandbox that was refused. Nobody else makes one with that
// id at the same time: the requests of its parent are decided one after the other. An error of
// the database refuses nothing: the sandbox may be stored, and SweepKeys decides later.
func (l *Ledger) unmake(n NewAgent, refused error) error {
	if n.Own.GetDerived() == nil || fault.Of(refused) == nil || errdefs.IsUnavailable(refused) {
		return nil
	}
	if _, exists := l.Sandbox(n.SandboxID); exists {
		return nil
	}
	return l.store.Keys().Erase(n.SandboxID)
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
	for _, c := range l.among(tx, l.LivingChildren(id), func(c Agent) bool { return c.Parent == id && !c.Deleted }) {
		sum = sum.Plus(agents.Taken(c.Record, agents.RulesOf(c.Spec).Budget, l.takenIn(tx, c.ID)))
	}
	return sum
}
