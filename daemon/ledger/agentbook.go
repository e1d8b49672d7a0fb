package ledger

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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
