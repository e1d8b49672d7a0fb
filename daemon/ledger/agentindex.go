package ledger

import (
	"cmp"
	"maps"
	"slices"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// agentSets has a set of agents for each key, such as the id of a sandbox.
type agentSets map[string]map[string]struct{}

func (s agentSets) add(key, agentID string) {
	if s[key] == nil {
		s[key] = make(map[string]struct{})
	}
	s[key][agentID] = struct{}{}
}

func (s agentSets) remove(key, agentID string) {
	delete(s[key], agentID)
	if len(s[key]) == 0 {
		delete(s, key)
	}
}

// move takes an agent from one set to another. An empty key is for no set.
func (s agentSets) move(from, to, agentID string) {
	if from == to {
		return
	}
	if from != "" {
		s.remove(from, agentID)
	}
	if to != "" {
		s.add(to, agentID)
	}
}

// agentIndex has the agents by what is asked about them, so that nobody looks at all that have
// ever been for one of them. Sets of living agents have those that have not ended, without init.
type agentIndex struct {
	// active has by sandbox the agents about which something may be left to do there: those
	// that have not ended, and ended ones whose incarnation may run or that own the sandbox.
	active agentSets
	// living has under atWork the living agents with an incarnation, and under idle those without.
	// Of livingIn the keys are sandboxes, of livingOf parents, of heldBy holders, and of
	// livingUnder the roots of stacks.
	living, livingIn, livingOf, heldBy, livingUnder agentSets
	// named has the agents with each name, ended ones too.
	named agentSets
	// undone has the ended agents among active, by sandbox, and busy those and the ones that
	// have an incarnation.
	undone, busy agentSets
	// untidy has under the key all the ended agents of which this daemon does not know that
	// they have left no files.
	untidy agentSets
}

// all is the key of sets with only one key.
const all = "all"

// The keys of agentIndex.living.
const atWork, idle = "at work", "idle"

func newAgentIndex() agentIndex {
	return agentIndex{
		make(agentSets), make(agentSets), make(agentSets), make(agentSets), make(agentSets), make(agentSets),
		make(agentSets), make(agentSets), make(agentSets), make(agentSets),
	}
}

// put follows the change of an agent. The zero Agent is one that does not exist.
func (x agentIndex) put(before, after Agent) {
	id := after.ID
	if after.Deleted {
		after = Agent{}
	}
	x.active.move(activeIn(before), activeIn(after), id)
	x.undone.move(undoneIn(before), undoneIn(after), id)
	x.busy.move(busyIn(before), busyIn(after), id)
	x.living.move(livingAs(before), livingAs(after), id)
	x.livingIn.move(ifLiving(before, before.SandboxID), ifLiving(after, after.SandboxID), id)
	x.livingOf.move(ifLiving(before, before.Parent), ifLiving(after, after.Parent), id)
	x.named.move(before.Name, after.Name, id)
	switch {
	case after.Over() && !before.Over():
		x.untidy.add(all, id)
	case !after.Over() && before.Over():
		x.untidy.remove(all, id)
	}
	for _, h := range before.Holders {
		x.heldBy.move(h.ID, "", id)
	}
	for _, h := range after.Holders {
		x.heldBy.move("", ifLiving(after, h.ID), id)
	}
	for _, root := range before.StackRoots {
		x.livingUnder.move(root, "", id)
	}
	for _, root := range after.StackRoots {
		x.livingUnder.move("", ifLiving(after, root), id)
	}
}

// activeIn is the sandbox in which something may be left to do about an agent, or "".
func activeIn(a Agent) string {
	if a.Over() && a.Incarnation == nil && !a.Owned {
		return ""
	}
	return a.SandboxID // init has none
}

// undoneIn is activeIn for an ended agent, or "".
func undoneIn(a Agent) string {
	if !a.Over() {
		return ""
	}
	return activeIn(a)
}

// busyIn is activeIn for an agent that has ended or has an incarnation, or "".
func busyIn(a Agent) string {
	if !a.Over() && a.Incarnation == nil {
		return ""
	}
	return activeIn(a)
}

// ifLiving is the key if the agent has not ended, or "".
func ifLiving(a Agent, key string) string {
	if !a.Exists() || a.Over() || a.ID == agents.Init {
		return ""
	}
	return key
}

// livingAs is the key of an agent in agentIndex.living, or "".
func livingAs(a Agent) string {
	if a.Incarnation != nil {
		return ifLiving(a, atWork)
	}
	return ifLiving(a, idle)
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

// Place is where an agent stands among others.
type Place struct {
	ID string
	// Position is the agent's age.
	Position uint64
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

// places returns the agents of some sets, oldest first.
func (b *agentBook) places(sets agentSets, keys ...string) []Place {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.placesLocked(sets, keys)
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

// AgentsIn returns the agents of a sandbox about which something may be left to do, oldest
// first: those that have not ended, and ended ones whose incarnation may run or that own it.
func (l *Ledger) AgentsIn(sandboxID string) []Agent {
	return l.agents.among(l.agents.index.active, sandboxID)
}

// BusyIn returns those of AgentsIn that have ended or have an incarnation, oldest first.
func (l *Ledger) BusyIn(sandboxID string) []Agent {
	return l.agents.among(l.agents.index.busy, sandboxID)
}

// Undone returns where the ended agents stand about which something may be left to do in a living
// sandbox, oldest first.
func (l *Ledger) Undone() []Place {
	l.mu.RLock()
	living := slices.Collect(maps.Keys(l.sandboxes))
	l.mu.RUnlock()
	return l.agents.places(l.agents.index.undone, living...)
}

// UndoneIn returns those of Undone in one sandbox.
func (l *Ledger) UndoneIn(sandboxID string) []Place {
	return l.agents.places(l.agents.index.undone, sandboxID)
}

// Living returns the agents that have not ended, oldest first, without init.
func (l *Ledger) Living() []Agent { return l.agents.among(l.agents.index.living, atWork, idle) }

// AtWork returns where the living agents stand that have an incarnation, oldest first, and Idle
// those that have none.
func (l *Ledger) AtWork() []Place { return l.agents.places(l.agents.index.living, atWork) }

// Idle is described at AtWork.
func (l *Ledger) Idle() []Place { return l.agents.places(l.agents.index.living, idle) }

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

// LivingIn returns the agents of a sandbox that have not ended, oldest first.
func (l *Ledger) LivingIn(sandboxID string) []Agent {
	return l.agents.among(l.agents.index.livingIn, sandboxID)
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

// LivingChildren returns the children of an agent that have not ended, oldest first.
func (l *Ledger) LivingChildren(id string) []Agent {
	return l.agents.among(l.agents.index.livingOf, id)
}

// Held returns the agents that a holder holds and that have not ended, oldest first.
func (l *Ledger) Held(holder string) []Agent { return l.agents.among(l.agents.index.heldBy, holder) }

// Untidy returns the ended agents that were not told to Tidied, oldest first.
func (l *Ledger) Untidy() []Agent { return l.agents.among(l.agents.index.untidy, all) }

// Tidied says that an agent that has ended has left no files.
func (l *Ledger) Tidied(id string) {
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	l.agents.index.untidy.remove(all, id)
}

// livingChildrenIn is LivingChildren at this point of the write order.
func (l *Ledger) livingChildrenIn(tx *store.Tx, id string) (list []Agent) {
	spawned, _ := tx.Value(spawnOverlay{}).([]Agent)
	for _, c := range append(l.LivingChildren(id), spawned...) {
		if c = l.agentIn(tx, c.ID); c.Parent == id && !c.Over() && !c.Deleted {
			list = append(list, c)
		}
	}
	return list
}
