package ledger

import (
	"cmp"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
)

// agentBook has the records of all agents that are not deleted, with indexes.
type agentBook struct {
	book[Agent]
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
	// leased has under the key all the agents that hold or ask for resources.
	leased agentSets
	// streams has the ids of the agents that have each stream open.
	streams agentSets
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
	b.book.init()
	b.index, b.spent, b.journals = newAgentIndex(), newSpentBudgets(), newJournalBook()
	b.running = make(map[string]string)
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

// subscribeLocked updates the sets of the streams that an agent has open.
func (b *agentBook) subscribeLocked(before, after Agent) {
	for _, stream := range before.Streams {
		b.streams.remove(stream, before.ID)
	}
	if after.Over() || after.Deleted {
		return
	}
	for _, stream := range after.Streams {
		b.streams.add(stream, after.ID)
	}
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

// among returns the agents of some sets, oldest first.
func (b *agentBook) among(sets agentSets, keys ...string) []Agent {
	b.mu.RLock()
	places := b.placesLocked(sets, keys)
	list := make([]Agent, 0, len(places))
	for _, p := range places {
		list = append(list, b.all[p.ID])
	}
	b.mu.RUnlock()
	b.copied.Add(uint64(len(list)))
	return list
}

// places returns the agents of some sets, oldest first.
func (b *agentBook) places(sets agentSets, keys ...string) []Place {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.placesLocked(sets, keys)
}

// placesLocked returns the agents of some sets, oldest first. A record is many times larger.
func (b *agentBook) placesLocked(sets agentSets, keys []string) []Place {
	var list []Place
	for _, key := range keys {
		list = slices.Grow(list, len(sets[key]))
		for id := range sets[key] {
			list = append(list, Place{id, b.all[id].Position})
		}
	}
	slices.SortFunc(list, func(a, b Place) int { return cmp.Compare(a.Position, b.Position) })
	return list
}

// count is how many agents some sets have.
func (b *agentBook) count(sets agentSets, keys ...string) (n int) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, key := range keys {
		n += len(sets[key])
	}
	return n
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
