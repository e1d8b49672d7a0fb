package ledger

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// agentBook has the records of all agents that are not deleted, with indexes.
type agentBook struct {
	// mu guards the fields below. It is held only for map operations, never for I/O.
	mu sync.RWMutex
	// all has the agents by id.
	all map[string]Agent
	// in has the ids of the agents of each sandbox. running has the id of the agent whose
	// incarnation has not ended, by the exec of that incarnation.
	in      map[string]map[string]struct{}
	running map[string]string
	// children has the children of each agent, and followers those that it must be COMPLETED
	// for before they begin.
	children, followers agentSets
	// named has the agents with each name; at most one of them has not ended.
	named agentSets
	// leased has the ids of the agents that hold or ask for resources.
	leased map[string]struct{}
	// streams has the ids of the agents that have each stream open.
	streams agentSets
	// changed has a channel for each agent that somebody waits for. The next commit closes
	// it. The key "" is for any agent.
	changed map[string]chan struct{}
	// published is the position of the newest event that the maps include.
	published uint64
}

// init makes an empty book.
func (b *agentBook) init() {
	b.all, b.in = make(map[string]Agent), make(map[string]map[string]struct{})
	b.running, b.changed = make(map[string]string), make(map[string]chan struct{})
	b.leased = make(map[string]struct{})
	b.children, b.followers, b.streams, b.named = make(agentSets), make(agentSets), make(agentSets), make(agentSets)
}

// putLocked adds an agent, or replaces it. A deleted one is removed.
func (b *agentBook) putLocked(a Agent) {
	before, known := b.all[a.ID]
	b.placeLocked(before, a)
	delete(b.leased, a.ID)
	if len(a.Holds)+len(a.Wants) > 0 && !a.Deleted {
		b.leased[a.ID] = struct{}{}
	}
	b.subscribeLocked(before, a)
	if known {
		if before.Incarnation != nil {
			delete(b.running, before.Incarnation.ExecID)
		}
		if before.SandboxID != a.SandboxID || a.Deleted {
			delete(b.in[before.SandboxID], a.ID)
			if len(b.in[before.SandboxID]) == 0 {
				delete(b.in, before.SandboxID)
			}
		}
	}
	if a.Deleted {
		delete(b.all, a.ID)
		return
	}
	b.all[a.ID] = a
	if a.Incarnation != nil {
		b.running[a.Incarnation.ExecID] = a.ID
	}
	if a.SandboxID == "" {
		return // the root
	}
	ids := b.in[a.SandboxID]
	if ids == nil {
		ids = make(map[string]struct{})
		b.in[a.SandboxID] = ids
	}
	ids[a.ID] = struct{}{}
}

// Agent returns an agent that is not deleted.
func (l *Ledger) Agent(id string) (Agent, bool) {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	a, ok := l.agents.all[id]
	return a, ok
}

// Agents returns the agents that fit, oldest first. nil fits all.
func (l *Ledger) Agents(fits func(Agent) bool) []Agent {
	l.agents.mu.RLock()
	list := slices.Collect(maps.Values(l.agents.all))
	l.agents.mu.RUnlock()
	if fits != nil { // it may look at other agents, so it is called without the lock
		list = slices.DeleteFunc(list, func(a Agent) bool { return !fits(a) })
	}
	return oldestFirst(list)
}

// AgentsIn returns the agents of a sandbox, oldest first.
func (l *Ledger) AgentsIn(sandboxID string) []Agent {
	l.agents.mu.RLock()
	var list []Agent
	for id := range l.agents.in[sandboxID] {
		list = append(list, l.agents.all[id])
	}
	l.agents.mu.RUnlock()
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
	if a.Deleted {
		l.mail.forget(a.ID)
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
