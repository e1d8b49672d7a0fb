package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
)

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
