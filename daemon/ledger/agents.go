package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Agent is the record of an agent with its spec. Both are read-only.
type Agent struct {
	agents.Record
	Spec *agboxv1.AgentSpec
}

// openAgents loads all agents. An agent whose record cannot be read is logged and left
// out.
func (l *Ledger) openAgents(ctx context.Context) error {
	l.agents.init()
	var ids []string
	err := l.store.View(ctx, func(tx *store.Tx) error {
		ids, l.agents.published = tx.AgentIDs(), tx.LastAgentPosition()
		return nil
	})
	if err != nil {
		return fmt.Errorf("list agents: %w", err)
	}
	var loaded []*Agent
	var records []*agents.Record
	for _, id := range ids {
		l.agents.touched[id] = struct{}{}
		a, err := l.loadAgent(ctx, id)
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			l.log.Error("the record of an agent cannot be read and is left out", "agent_id", id, "error", err)
		case a.Exists():
			loaded, records = append(loaded, &a), append(records, &a.Record)
		}
	}
	agents.GiveBorders(records)
	for _, a := range loaded {
		if a.Deleted {
			l.agents.offspring.move("", a.Origin, a.ID)
		} else {
			l.agents.putLocked(*a) // nobody else uses the ledger yet
		}
	}
	l.openLeases()
	if err := l.openInboxes(ctx); err != nil {
		return err
	}
	return l.settleLeases(ctx)
}

// loadAgent folds one agent from the store.
func (l *Ledger) loadAgent(ctx context.Context, id string) (Agent, error) {
	var a Agent
	err := l.store.View(ctx, func(tx *store.Tx) (err error) {
		a.Spec, err = tx.AgentConfig(id)
		return err
	})
	for page := (store.AgentPage{More: true}); err == nil && page.More; {
		err = l.store.View(ctx, func(tx *store.Tx) error {
			page = tx.AgentEvents(id, page.Next, loadPage)
			return nil
		})
		if err == nil && len(page.Bad) > 0 {
			return a, page.Bad[0]
		}
		for _, ev := range page.Events {
			a.Record = agents.Fold(a.Record, ev)
		}
	}
	return a, err
}

// hasNoAgents refuses a sandbox with agents that have not ended, and names them.
func (t *txn) hasNoAgents() error {
	in := t.l.AgentsIn(t.sb.ID)
	spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
	for _, a := range spawned {
		if a.SandboxID == t.sb.ID {
			in = append(in, a)
		}
	}
	var living []Agent
	for _, a := range in {
		if a = t.l.agentIn(t.tx, a.ID); !a.Over() {
			living = append(living, a)
		}
	}
	if len(living) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS,
		"In sandbox %s there are agents that have not ended: %s. End them with \"agbox agent kill\", or remove the sandbox with \"agbox rm -f\".",
		t.sb.Called(), naming(living)).With("sandbox_id", t.sb.ID)
}

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

// TreeOf is the id of the agent at the top of the tree of an agent. It outlives that agent, so
// the children that init adopts do not become trees of their own.
func (l *Ledger) TreeOf(a Agent) string { return topOf(a, l.Agent) }

// topOf is TreeOf among the agents that find returns.
func topOf(a Agent, find func(id string) (Agent, bool)) string {
	for a.Tree == "" && a.Parent != agents.Init {
		parent, exists := find(a.Parent)
		if !exists {
			break
		}
		a = parent
	}
	if a.Tree != "" {
		return a.Tree
	}
	return a.ID
}

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

// treeOverlay is the key of the number of sandboxes that a batch has accepted for a tree.
type treeOverlay struct{ tree string }

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

// sandboxesOfTree is how many sandboxes exist that agents of a tree have asked for.
func (l *Ledger) sandboxesOfTree(tree string) int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.byTree[tree])
}

// growTreeLocked follows the change of a sandbox that an agent has asked for.
func (l *Ledger) growTreeLocked(sb Sandbox) {
	tree := sb.Spec.GetDerived().GetTree()
	switch {
	case tree == "":
	case sb.Over():
		l.byTree.remove(tree, sb.ID)
		l.gone.add(tree, sb.ID)
		l.goneAt[sb.ID] = goneSandbox{tree, sb.StateChangedAt}
		l.crowdLocked(tree)
	default:
		l.byTree.add(tree, sb.ID)
	}
}

// goneSandbox is a deleted sandbox that an agent of a tree had asked for.
type goneSandbox struct {
	tree string
	at   time.Time
}

// KeptOfTree is how many deleted sandboxes are kept for each tree of agents that has asked for
// them from inside, so that a program which spawns in a loop does not fill the disk with logs.
const KeptOfTree = 8

// crowdLocked follows a change of the deleted sandboxes of a tree.
func (l *Ledger) crowdLocked(tree string) {
	if len(l.gone[tree]) > KeptOfTree {
		l.crowded.add(all, tree)
	} else {
		l.crowded.remove(all, tree)
	}
}

// Surplus returns the deleted sandboxes that agents had asked for from inside but for the newest
// of each tree. The bound of a tree counts only sandboxes that exist, so a program can have made
// and left any number, each with logs.
func (l *Ledger) Surplus() map[string]bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	surplus := make(map[string]bool)
	for tree := range l.crowded[all] {
		ids := l.gone[tree]
		oldest := slices.SortedFunc(maps.Keys(ids), func(a, b string) int { return l.goneAt[a].at.Compare(l.goneAt[b].at) })
		for _, id := range oldest[:len(oldest)-KeptOfTree] {
			surplus[id] = true
		}
	}
	return surplus
}

// dropped forgets a deleted sandbox.
func (l *Ledger) dropped(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.touched, id)
	if g, known := l.goneAt[id]; known {
		l.gone.remove(g.tree, id)
		delete(l.goneAt, id)
		l.crowdLocked(g.tree)
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

// Picture returns how the surroundings of an agent are now; nil if its sandbox is gone.
func (l *Ledger) Picture(a Agent) *agboxv1.AgentPicture {
	sb, living := l.Sandbox(a.SandboxID)
	return picture(sb, living)
}

// picture is Picture within a transaction.
func (t *agentTxn) picture() *agboxv1.AgentPicture {
	sb, living := t.l.sandboxIn(t.tx, t.a.SandboxID)
	p := picture(sb, living)
	if p != nil {
		p.Leases = agents.Leases(t.a.Holds)
	}
	return p
}

// sandboxIn returns a sandbox as the batch has it so far.
func (l *Ledger) sandboxIn(tx *store.Tx, id string) (Sandbox, bool) {
	if sb, ok := tx.Value(overlay{id}).(Sandbox); ok {
		return sb, true
	}
	return l.Sandbox(id)
}

func picture(sb Sandbox, living bool) *agboxv1.AgentPicture {
	if !living || !sb.Exists() {
		return nil
	}
	p := &agboxv1.AgentPicture{
		SandboxId: sb.ID, ReadyAt: timestamppb.New(sb.ReadyAt), Image: sb.Spec.GetImage(),
		Services: make(map[string]uint32), Limits: make(map[string]string),
	}
	for name, s := range sb.Services {
		p.Services[name] = s.Start
	}
	for name, value := range map[string]string{
		"cpu_limit": sb.Spec.GetCpuLimit(), "memory_limit": sb.Spec.GetMemoryLimit(), "disk_limit": sb.Spec.GetDiskLimit(),
	} {
		if value != "" {
			p.Limits[name] = value
		}
	}
	return p
}

// AgentWork returns the work of an agent as it was when the agent was spawned.
func (l *Ledger) AgentWork(ctx context.Context, id string) (work []byte, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		work, err = tx.AgentWork(id)
		return err
	})
	return work, err
}

// maxHistory is how many events are read to find out who held the resources of an agent.
const maxHistory = 20000

// HeldMeanwhile returns who else held the resources of an agent since its pause began. whole is
// false if agents were removed since, or so much has happened that it was not all read.
func (l *Ledger) HeldMeanwhile(ctx context.Context, a Agent) (list []agents.Passed, whole bool, err error) {
	m := agents.NewMeanwhile(a.Record)
	if m.Empty() {
		return []agents.Passed{}, true, nil
	}
	scope := a.LeaseParty().Scope
	concerns := func(b Agent) bool { return b.Exists() && b.ID != a.ID && b.LeaseParty().Scope == scope }
	var page store.AgentPage
	for at, read := a.AwayFrom, 0; read == 0 || page.More && read < maxHistory; at = page.Next {
		err := l.store.View(ctx, func(tx *store.Tx) error {
			page = tx.OrderedAgentEvents(at, agentPage)
			whole = tx.AgentsTrimmed().UpTo <= a.AwayFrom
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		for _, ev := range page.Events {
			if ev.GetLease() == nil {
				continue
			}
			if b, _ := l.Agent(ev.GetAgentId()); concerns(b) {
				m.Saw(ev)
			}
		}
		read += agentPage
	}
	for _, b := range l.leased(concerns) {
		m.Holds(b.ID, b.Holds)
	}
	return m.Passed(func(id string) string { b, _ := l.Agent(id); return b.Name }), whole && !page.More, nil
}

// agentPage is how many events are read at once.
const agentPage = 500
