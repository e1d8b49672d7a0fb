package ledger

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Agent returns an agent that is not deleted.
func (l *Ledger) Agent(id string) (Agent, bool) { return l.agents.get(id) }

// Agents returns the agents that fit, oldest first. nil fits all. It looks at all, also those
// that ended long ago.
func (l *Ledger) Agents(fits func(Agent) bool) []Agent {
	list := l.agents.list()
	l.agents.copied.Add(uint64(len(list)))
	if fits != nil { // it may look at other agents, so it is called without the lock
		list = slices.DeleteFunc(list, func(a Agent) bool { return !fits(a) })
	}
	return oldestFirst(list)
}

// AgentOf returns the agent whose current incarnation is that exec.
func (l *Ledger) AgentOf(sandboxID, execID string) (Agent, bool) {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	a, ok := l.agents.all[l.agents.running[execID]]
	if !ok || a.Incarnation.SandboxID != sandboxID {
		return Agent{}, false
	}
	return a, true
}

// AgentWork returns the work of an agent as it was when the agent was spawned.
func (l *Ledger) AgentWork(ctx context.Context, id string) (work []byte, err error) {
	return view(ctx, l, func(tx *store.Tx) ([]byte, error) { return tx.AgentWork(id) })
}

// AgentChanged returns a channel that the next commit about the agent closes; an empty id
// means any agent. Call it before reading the record, or a change in between is missed.
func (l *Ledger) AgentChanged(id string) <-chan struct{} {
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	return l.agents.changed.on(id)
}

// publishAgent makes a committed change visible and wakes the callers that wait for it.
// The store calls it in commit order, before the change is acknowledged.
func (l *Ledger) publishAgent(a Agent, position uint64) {
	book := &l.agents
	book.mu.Lock()
	defer book.mu.Unlock()
	book.published = max(book.published, position)
	book.putLocked(a)
	book.touched[a.ID] = struct{}{}
	for w := range book.waits {
		w.followLocked(a)
	}
	if a.Deleted {
		l.mail.forget(a)
	}
	book.changed.wake(a.ID, "")
}

// NewestOfAgents is the position of the newest event of an agent that the records include.
func (l *Ledger) NewestOfAgents() uint64 {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	return l.agents.published
}

// WaitForEnd begins to wait for the end of an agent, with tree also of those below it, also those
// that are spawned later and those that others have adopted. The caller closes the AgentWait.
func (l *Ledger) WaitForEnd(id string, tree bool) *AgentWait {
	b := &l.agents
	w := &AgentWait{Changed: make(chan struct{}, 1), book: b, tree: tree, living: make(map[string]struct{}), known: make(map[string]struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits[w] = struct{}{}
	w.addLocked(id)
	slices.SortFunc(w.ended, func(x, y string) int { return b.all[x].EndedAt.Compare(b.all[y].EndedAt) })
	return w
}

// Spawner reports whether an agent, which may have been removed, has spawned one that was not
// removed, or one of those below it has.
func (l *Ledger) Spawner(id string) bool {
	b := &l.agents
	b.mu.RLock()
	defer b.mu.RUnlock()
	seen := map[string]bool{id: true}
	for below := []string{id}; len(below) > 0; below = below[1:] {
		for child := range b.offspring[below[0]] {
			if _, exists := b.all[child]; exists {
				return true
			}
			if !seen[child] { // damaged records may name each other
				seen[child] = true
				below = append(below, child)
			}
		}
	}
	return false
}

// AgentsIn returns the agents of a sandbox about which something may be left to do, oldest
// first: those that have not ended, and ended ones whose incarnation may run or that own it.
func (l *Ledger) AgentsIn(sandboxID string) []Agent {
	return l.agents.among(l.agents.index.active, sandboxID)
}

// LivingIn returns the agents of a sandbox that have not ended, oldest first.
func (l *Ledger) LivingIn(sandboxID string) []Agent {
	return l.agents.among(l.agents.index.livingIn, sandboxID)
}

// BusyIn returns those of AgentsIn that have ended or have an incarnation, oldest first.
func (l *Ledger) BusyIn(sandboxID string) []Agent {
	return l.agents.among(l.agents.index.busy, sandboxID)
}

// Living returns the agents that have not ended, oldest first, without init.
func (l *Ledger) Living() []Agent { return l.agents.among(l.agents.index.living, atWork, idle) }

// AtWork returns where the living agents stand that have an incarnation, oldest first, and Idle
// those that have none.
func (l *Ledger) AtWork() []Place { return l.agents.places(l.agents.index.living, atWork) }

// Idle is described at AtWork.
func (l *Ledger) Idle() []Place { return l.agents.places(l.agents.index.living, idle) }

// Undone returns where the ended agents stand about which something may be left to do in a living
// sandbox, oldest first.
func (l *Ledger) Undone() []Place {
	l.sandboxes.mu.RLock()
	living := slices.Collect(maps.Keys(l.sandboxes.all))
	l.sandboxes.mu.RUnlock()
	return l.agents.places(l.agents.index.undone, living...)
}

// UndoneIn returns those of Undone in one sandbox.
func (l *Ledger) UndoneIn(sandboxID string) []Place {
	return l.agents.places(l.agents.index.undone, sandboxID)
}

// Stranded returns the ids of the living agents whose parent has ended, in any order. It looks at
// parents, which are fewer.
func (l *Ledger) Stranded() (ids []string) {
	b := &l.agents
	b.mu.RLock()
	defer b.mu.RUnlock()
	for parent, children := range b.index.livingOf {
		if p, exists := b.all[parent]; parent != agents.Init && (!exists || p.Over()) {
			ids = slices.AppendSeq(ids, maps.Keys(children))
		}
	}
	return ids
}

// Held returns the agents that a holder holds and that have not ended, oldest first.
func (l *Ledger) Held(holder string) []Agent { return l.agents.among(l.agents.index.heldBy, holder) }

// leased returns the agents that hold or ask for something and fit, oldest first.
func (l *Ledger) leased(fits func(Agent) bool) []Agent {
	list := l.agents.among(l.agents.leased, all)
	return slices.DeleteFunc(list, func(a Agent) bool { return !fits(a) })
}

// Untidy returns the ended agents that were not told to Tidied, oldest first.
func (l *Ledger) Untidy() []Agent { return l.agents.among(l.agents.index.untidy, all) }

// Tidied says that an agent that has ended has left no files.
func (l *Ledger) Tidied(id string) {
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	l.agents.index.untidy.remove(all, id)
}

// EndedBeyond returns the ended agents, oldest first, that ended at the time old or before, and
// of those that ended at the time settled or before the ones that ended first, as many as there
// are more than most in all.
func (l *Ledger) EndedBeyond(old, settled time.Time, most int) []Agent {
	b := &l.agents
	b.mu.RLock()
	first := b.ended[:max(b.endedByLocked(old), min(len(b.ended)-most, b.endedByLocked(settled)))]
	list := make([]Agent, 0, len(first))
	for _, e := range first {
		list = append(list, b.all[e.id])
	}
	b.mu.RUnlock()
	b.copied.Add(uint64(len(list)))
	return oldestFirst(list)
}

// The bounds of agents that have not ended. Those of the tree do not bound the children of
// init.
const (
	maxAgents          = 1000
	maxAgentsInSandbox = 256
	maxChildren        = 256
	maxDepth           = 8
)

// Children returns the children of an agent that are not removed, oldest first.
func (l *Ledger) Children(id string) []Agent {
	return l.agents.among(l.agents.children, id)
}

// LivingChildren returns the children of an agent that have not ended, oldest first.
func (l *Ledger) LivingChildren(id string) []Agent {
	return l.agents.among(l.agents.index.livingOf, id)
}

// Descendants returns the children of an agent that are not removed, theirs, and so on, ended
// ones too, oldest first.
func (l *Ledger) Descendants(id string) []Agent {
	list := l.Children(id)
	for i := 0; i < len(list); i++ { // nobody is below itself
		list = append(list, l.Children(list[i].ID)...)
	}
	return oldestFirst(list)
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

// sandboxesOfTree is how many sandboxes exist that agents of a tree have asked for.
func (l *Ledger) sandboxesOfTree(tree string) int {
	l.sandboxes.mu.RLock()
	defer l.sandboxes.mu.RUnlock()
	return len(l.sandboxes.byTree[tree])
}

// InStack reports whether the agent is in a stack with that name.
func (l *Ledger) InStack(a Agent, name string) bool {
	return slices.ContainsFunc(a.StackRoots, func(root string) bool {
		r, _ := l.Agent(root)
		return agents.StackOf(r.Spec).Name == name
	})
}

// ChildrenBudget is what the children of an agent have of its budget, or have used of it.
func (l *Ledger) ChildrenBudget(a Agent) gate.Amount {
	return l.agents.taken(a.ID).Plus(a.UsedByFormer())
}

// SpentByChildren is the part of ChildrenBudget that ended children have used. It does not
// come back to the agent.
func (l *Ledger) SpentByChildren(a Agent) gate.Amount {
	return l.agents.spentBelow(a.ID).Plus(a.UsedByFormer())
}

// StackJournals are the journals of the agents in a stack.
type StackJournals struct {
	// Most is how many bytes there may be.
	Most uint64
	// Ended is how many bytes those have that were counted: of incarnations that have ended.
	Ended uint64
	// Running has the agents with an incarnation.
	Running []Agent
}

// StackJournals returns the journals of the stacks that an agent is in and that bound them.
func (l *Ledger) StackJournals(a Agent) (list []StackJournals) {
	for _, root := range a.StackRoots {
		s := StackJournals{Most: l.mostJournals(root), Running: l.agents.among(l.agents.journals.running, root)}
		l.agents.mu.RLock()
		s.Ended = l.agents.journals.sums[root]
		l.agents.mu.RUnlock()
		if s.Most > 0 {
			list = append(list, s)
		}
	}
	return list
}

// mostJournals is how many bytes the journals of a stack may have. 0 means any number.
func (l *Ledger) mostJournals(root string) uint64 {
	r, _ := l.Agent(root)
	return agents.StackOf(r.Spec).JournalBytes
}

// UncountedJournals returns the agents in the stacks of StackJournals that have incarnations which
// have ended and were not told to CountJournals.
func (l *Ledger) UncountedJournals(a Agent) (list []Agent) {
	for _, root := range a.StackRoots {
		if l.mostJournals(root) > 0 {
			list = append(list, l.agents.among(l.agents.journals.uncounted, root)...)
		}
	}
	return list
}

// CountJournals counts the journals of the incarnations of an agent that have ended and were not
// counted before. size returns how many bytes one has. It is called again if journals of the agent
// were removed meanwhile.
func (l *Ledger) CountJournals(a Agent, size func(incarnation uint32) uint64) {
	b := &l.agents
	for done := false; !done; {
		b.mu.RLock()
		before, upto := b.journals.counted[a.ID], endedUpto(a)
		b.mu.RUnlock()
		sizes := make(map[string]uint64)
		for n := before.upto + 1; n <= upto; n++ {
			if bytes := size(n); bytes > 0 {
				sizes[agents.ExecID(a.ID, n)] = bytes
			}
		}
		done = b.countJournals(a, before, upto, sizes)
	}
}

// RecountJournals says that files of a sandbox were removed whose execs stay. The journals of its
// agents are counted anew.
func (l *Ledger) RecountJournals(sandboxID string) {
	b := &l.agents
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, a := range b.all {
		if a.SandboxID != sandboxID && !slices.ContainsFunc(a.Moves, func(s agents.Stay) bool { return s.SandboxID == sandboxID }) {
			continue
		}
		counted := b.journals.counted[id]
		for _, size := range counted.sizes {
			b.journals.add(a, -size)
		}
		b.journals.counted[id] = countedJournals{removals: counted.removals + 1}
		b.journals.put(a, a)
	}
}

// maxHistory is how many events are read to find out who held the resources of an agent.
const maxHistory = 20000

// agentPage is how many events are read at once.
const agentPage = 500

// HeldMeanwhile returns who else held the resources of an agent since its pause began. whole is
// false if agents were removed since, or so much has happened that it was not all read.
func (l *Ledger) HeldMeanwhile(ctx context.Context, a Agent) (list []agents.Passed, whole bool, err error) {
	m := agents.NewMeanwhile(a.Record)
	if m.Empty() {
		return []agents.Passed{}, true, nil
	}
	scope := a.LeaseParty().Scope
	concerns := func(b Agent) bool { return b.Exists() && b.ID != a.ID && b.LeaseParty().Scope == scope }
	var page store.Page[*agboxv1.AgentEvent]
	for at, read := a.AwayFrom, 0; read == 0 || page.More && read < maxHistory; at = page.Next {
		page, err = look(ctx, l, func(tx *store.Tx) store.Page[*agboxv1.AgentEvent] { return tx.OrderedAgentEvents(at, agentPage) })
		if err != nil {
			return nil, false, err
		}
		whole = page.Trimmed.UpTo <= a.AwayFrom
		for _, ev := range page.Records {
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
