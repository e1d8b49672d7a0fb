package ledger

import (
	"slices"

	"github.com/agbox/agbox/agents"
)

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
