package ledger

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
)

// agentBook has the records of all agents that are not deleted, with indexes.
type agentBook struct {
	// mu guards the fields below. It is held only for map operations, never for I/O.
	mu sync.RWMutex
	// all has the agents by id.
	all map[string]Agent
	// index finds agents by what is asked about them.
	index agentIndex
	// running has the id of the agent whose incarnation has not ended, by the exec of that
	// incarnation.
	running map[string]string
	// spent has what ended agents have used of the budgets of their parents.
	spent spentBudgets
	// children has the children of each agent, and followers those that it must be COMPLETED
	// for before they begin.
	children, followers agentSets
	// offspring has the agents that each agent has spawned, also those that were deleted, until
	// DropAgent.
	offspring agentSets
	// journals has the sizes of the journals of stacks.
	journals journalBook
	// ended has the agents that have ended, in the order of their ends.
	ended []ending
	// touched has the agents with events that retention has not looked at.
	touched map[string]struct{}
	// leased has under the key all the agents that hold or ask for resources.
	leased agentSets
	// streams has the ids of the agents that have each stream open.
	streams agentSets
	// changed has a channel for each agent that somebody waits for. The next commit closes
	// it. The key "" is for any agent.
	changed map[string]chan struct{}
	// waits are told of agents that end.
	waits map[*AgentWait]struct{}
	// published is the position of the newest event that the maps include.
	published uint64

	// copied counts the records that were given to readers as lists, or to transactions. Tests
	// bound it.
	copied atomic.Uint64
}

// init makes an empty book.
func (b *agentBook) init() {
	b.all, b.index, b.spent = make(map[string]Agent), newAgentIndex(), newSpentBudgets()
	b.running, b.changed = make(map[string]string), make(map[string]chan struct{})
	b.touched = make(map[string]struct{})
	b.journals = newJournalBook()
	b.leased, b.waits = make(agentSets), make(map[*AgentWait]struct{})
	b.children, b.followers, b.streams = make(agentSets), make(agentSets), make(agentSets)
	b.offspring = make(agentSets)
}

// putLocked adds an agent, or replaces it. A deleted one is removed.
func (b *agentBook) putLocked(a Agent) {
	before := b.all[a.ID]
	b.placeLocked(before, a)
	b.offspring.move("", a.Origin, a.ID)
	b.leased.remove(all, a.ID)
	if len(a.Holds)+len(a.Wants) > 0 && !a.Deleted {
		b.leased.add(all, a.ID)
	}
	b.subscribeLocked(before, a)
	b.index.put(before, a)
	b.endLocked(before, a)
	b.journals.put(before, a)
	if before.Incarnation != nil {
		delete(b.running, before.Incarnation.ExecID)
	}
	if a.Deleted {
		delete(b.all, a.ID)
	} else {
		b.all[a.ID] = a
		if a.Incarnation != nil {
			b.running[a.Incarnation.ExecID] = a.ID
		}
	}
	b.accountLocked(before, a)
}

// Agent returns an agent that is not deleted.
func (l *Ledger) Agent(id string) (Agent, bool) {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	a, ok := l.agents.all[id]
	return a, ok
}

// Agents returns the agents that fit, oldest first. nil fits all. It looks at all, also those
// that ended long ago.
func (l *Ledger) Agents(fits func(Agent) bool) []Agent {
	l.agents.mu.RLock()
	list := slices.Collect(maps.Values(l.agents.all))
	l.agents.mu.RUnlock()
	l.agents.copied.Add(uint64(len(list)))
	if fits != nil { // it may look at other agents, so it is called without the lock
		list = slices.DeleteFunc(list, func(a Agent) bool { return !fits(a) })
	}
	return oldestFirst(list)
}

func oldestFirst(list []Agent) []Agent {
	slices.SortFunc(list, func(a, b Agent) int { return cmp.Compare(a.Position, b.Position) })
	return list
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

// AgentChanged returns a channel that the next commit about the agent closes; an empty id
// means any agent. Call it before reading the record, or a change in between is missed.
func (l *Ledger) AgentChanged(id string) <-chan struct{} {
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	ch, ok := l.agents.changed[id]
	if !ok {
		ch = make(chan struct{})
		l.agents.changed[id] = ch
	}
	return ch
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
	for _, key := range [...]string{a.ID, ""} {
		if ch, waiting := book.changed[key]; waiting {
			delete(book.changed, key)
			close(ch)
		}
	}
}

// NewestOfAgents is the position of the newest event of an agent that the records include.
func (l *Ledger) NewestOfAgents() uint64 {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	return l.agents.published
}

// AgentWait waits for the end of an agent, or of it and all agents that were spawned below it. It
// learns of each change as it is committed, so it reads no events and looks at no other agents.
type AgentWait struct {
	// Changed has a value when Take has more agents.
	Changed chan struct{}

	// The mutex of the book guards the fields below.
	book *agentBook
	tree bool
	// living has the agents that it waits for, and known those and the ones that have ended.
	living, known map[string]struct{}
	// ended has those that Take has not returned.
	ended []string
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

// addLocked adds an agent and those below it. One that was removed leads to those below it only.
func (w *AgentWait) addLocked(id string) {
	w.known[id] = struct{}{}
	if a, exists := w.book.all[id]; exists {
		w.living[id] = struct{}{}
		w.followLocked(a)
	}
	if !w.tree {
		return
	}
	for child := range w.book.offspring[id] {
		if _, known := w.known[child]; !known {
			w.addLocked(child)
		}
	}
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

// followLocked follows the change of an agent. The spawn of a child is committed before the end of
// its parent, so there are no others once all known ones have ended.
func (w *AgentWait) followLocked(a Agent) {
	_, known := w.known[a.ID]
	if _, below := w.known[a.Origin]; !known && below && w.tree {
		w.known[a.ID], w.living[a.ID] = struct{}{}, struct{}{}
	}
	if _, awaited := w.living[a.ID]; !awaited || !a.Over() {
		return
	}
	delete(w.living, a.ID)
	w.ended = append(w.ended, a.ID)
	select {
	case w.Changed <- struct{}{}:
	default:
	}
}

// Take returns the agents that have ended since the call before, as they ended, and whether there
// are others to wait for. Those that were removed are left out.
func (w *AgentWait) Take() (ended []Agent, more bool) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	for _, id := range w.ended {
		if a, exists := w.book.all[id]; exists {
			ended = append(ended, a)
		}
	}
	w.ended = nil
	return ended, len(w.living) > 0
}

// Close ends the wait.
func (w *AgentWait) Close() {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	delete(w.book.waits, w)
}

// spentBudgets has what ended agents have used of the budgets of their parents, so that a spawn
// adds up living children only.
type spentBudgets struct {
	// by has what each ended agent takes, and of whose budget. below has the sums by parent.
	by    map[string]spending
	below map[string]spentSum
}

type spending struct {
	parent string
	amount gate.Amount
}

// spentSum is a sum that does not overflow, so that parts of it can be taken away again.
type spentSum struct{ tokens, cost wide }

type wide struct{ high, low uint64 }

func (w wide) plus(n uint64) wide {
	low, carry := bits.Add64(w.low, n, 0)
	return wide{w.high + carry, low}
}

func (w wide) minus(n uint64) wide {
	low, borrow := bits.Sub64(w.low, n, 0)
	return wide{w.high - borrow, low}
}

func (w wide) bounded() uint64 {
	if w.high > 0 {
		return ^uint64(0)
	}
	return w.low
}

func (s spentSum) amount() gate.Amount {
	return gate.Amount{InputTokens: s.tokens.bounded(), CostMicroUSD: s.cost.bounded()}
}

func newSpentBudgets() spentBudgets {
	return spentBudgets{make(map[string]spending), make(map[string]spentSum)}
}

// set replaces what an ended agent takes. The zero spending is nothing.
func (s spentBudgets) set(id string, now spending) {
	before := s.by[id]
	if before.parent != "" {
		sum := s.below[before.parent]
		sum = spentSum{sum.tokens.minus(before.amount.InputTokens), sum.cost.minus(before.amount.CostMicroUSD)}
		s.below[before.parent] = sum
		if sum == (spentSum{}) {
			delete(s.below, before.parent)
		}
	}
	if now.amount == (gate.Amount{}) {
		delete(s.by, id)
		return
	}
	s.by[id] = now
	sum := s.below[now.parent]
	s.below[now.parent] = spentSum{sum.tokens.plus(now.amount.InputTokens), sum.cost.plus(now.amount.CostMicroUSD)}
}

// accountLocked follows the change of an agent. What it takes changes what those above it take
// that have ended.
func (b *agentBook) accountLocked(before, after Agent) {
	b.spendLocked(after.ID)
	for _, parent := range []string{before.Parent, after.Parent} {
		for id := parent; id != "" && id != agents.Init && b.spendLocked(id); {
			id = b.all[id].Parent
		}
	}
}

// spendLocked computes anew what an agent takes if it has ended, and reports whether it exists.
func (b *agentBook) spendLocked(id string) bool {
	a, exists := b.all[id]
	if !exists || !a.Over() {
		b.spent.set(id, spending{})
		return exists
	}
	b.spent.set(id, spending{a.Parent, agents.Taken(a.Record, agents.Budget{}, b.takenLocked(id))})
	return true
}

// takenLocked is what the children of an agent take of its budget.
func (b *agentBook) takenLocked(id string) gate.Amount {
	sum := b.spent.below[id].amount()
	for child := range b.index.livingOf[id] {
		c := b.all[child]
		sum = sum.Plus(agents.Taken(c.Record, agents.RulesOf(c.Spec).Budget, b.takenLocked(child)))
	}
	return sum
}

// taken is takenLocked for others.
func (b *agentBook) taken(id string) gate.Amount {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.takenLocked(id)
}

// spentBelow is what the ended children of an agent take of its budget.
func (b *agentBook) spentBelow(id string) gate.Amount {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.spent.below[id].amount()
}

// ending is the end of an agent.
type ending struct {
	at time.Time
	id string
}

func (e ending) compare(other ending) int {
	return cmp.Or(e.at.Compare(other.at), cmp.Compare(e.id, other.id))
}

// endLocked follows the change of an agent. New ends are mostly at the end of the list, and
// those of agents that are deleted at its beginning.
func (b *agentBook) endLocked(before, after Agent) {
	if before.Over() {
		if at, known := slices.BinarySearchFunc(b.ended, ending{before.EndedAt, before.ID}, ending.compare); known && at == 0 {
			b.ended = b.ended[1:]
		} else if known {
			b.ended = slices.Delete(b.ended, at, at+1)
		}
	}
	if after.Over() && !after.Deleted {
		e := ending{after.EndedAt, after.ID}
		at, _ := slices.BinarySearchFunc(b.ended, e, ending.compare)
		b.ended = slices.Insert(b.ended, at, e)
	}
}

// endedByLocked is how many agents ended at a time or before.
func (b *agentBook) endedByLocked(at time.Time) int {
	return sort.Search(len(b.ended), func(i int) bool { return b.ended[i].at.After(at) })
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

// journalBook has the sizes of the journals of all incarnations in stacks that have ended, so
// that a start looks at those that run only. A journal does not change after the end.
type journalBook struct {
	// counted is by agent, and sums by the root of a stack, in bytes.
	counted map[string]countedJournals
	sums    map[string]uint64
	// running has by root the agents with an incarnation, and uncounted those with incarnations
	// that have ended and were not counted.
	running, uncounted agentSets
}

// countedJournals are those of the incarnations of an agent up to one, by exec.
type countedJournals struct {
	upto  uint32
	sizes map[string]uint64
	// removals is how often journals of the agent were removed, so that nobody adds what was
	// measured before.
	removals uint32
}

func newJournalBook() journalBook {
	return journalBook{make(map[string]countedJournals), make(map[string]uint64), make(agentSets), make(agentSets)}
}

// put follows the change of an agent.
func (x journalBook) put(before, after Agent) {
	for _, root := range before.StackRoots {
		x.running.remove(root, before.ID)
		x.uncounted.remove(root, before.ID)
	}
	if after.Deleted {
		for _, size := range x.counted[before.ID].sizes {
			x.add(before, -size)
		}
		delete(x.counted, before.ID)
		return
	}
	for _, root := range after.StackRoots {
		if after.Incarnation != nil {
			x.running.add(root, after.ID)
		}
		if endedUpto(after) > x.counted[after.ID].upto {
			x.uncounted.add(root, after.ID)
		}
	}
}

// endedUpto is the newest incarnation of an agent that has ended, or 0.
func endedUpto(a Agent) uint32 {
	if a.Incarnation != nil {
		return a.Incarnation.N - 1
	}
	return a.Incarnations
}

// add adds to the sums of the stacks of an agent. A difference below zero wraps around.
func (x journalBook) add(a Agent, bytes uint64) {
	for _, root := range a.StackRoots {
		if x.sums[root] += bytes; x.sums[root] == 0 {
			delete(x.sums, root)
		}
	}
}

// forgetJournals follows the removal of execs with their files.
func (b *agentBook) forgetJournals(execIDs []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, execID := range execIDs {
		id, _ := agents.OfExec(execID)
		a, exists := b.all[id]
		if !exists {
			continue
		}
		counted := b.journals.counted[id]
		b.journals.add(a, -counted.sizes[execID])
		delete(counted.sizes, execID)
		counted.removals++
		b.journals.counted[id] = counted
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

// countJournals adds what was measured after the count before, unless it may be wrong by now.
func (b *agentBook) countJournals(a Agent, before countedJournals, upto uint32, sizes map[string]uint64) (done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, exists := b.all[a.ID]
	counted := b.journals.counted[a.ID]
	switch {
	case !exists: // removed
		return true
	case counted.removals != before.removals:
		return false
	case counted.upto != before.upto: // counted by another start
		return true
	}
	if counted.sizes == nil {
		counted.sizes = make(map[string]uint64)
	}
	for execID, bytes := range sizes {
		counted.sizes[execID] = bytes
		b.journals.add(a, bytes)
	}
	counted.upto = max(counted.upto, upto)
	b.journals.counted[a.ID] = counted
	b.journals.put(now, now)
	return true
}
