package ledger

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Agent is the record of an agent with its spec. Both are read-only.
type Agent struct {
	agents.Record
	Spec *agboxv1.AgentSpec
}

// Place is where an agent stands among others.
type Place struct {
	ID string
	// Position is the agent's age.
	Position uint64
}

// The keys of agentIndex.living.
const atWork, idle = "at work", "idle"

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

// spentBudgets has what ended agents have used of the budgets of their parents, so that a spawn
// adds up living children only.
type spentBudgets struct {
	// by has what each ended agent takes, and of whose budget. below has the sums by parent.
	by    map[string]spending
	below map[string]spentSum
}

func newSpentBudgets() spentBudgets {
	return spentBudgets{make(map[string]spending), make(map[string]spentSum)}
}

type spending struct {
	parent string
	amount gate.Amount
}

// spentSum is a sum that does not overflow, so that parts of it can be taken away again.
type spentSum struct{ tokens, cost wide }

func (s spentSum) amount() gate.Amount {
	return gate.Amount{InputTokens: s.tokens.bounded(), CostMicroUSD: s.cost.bounded()}
}

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

// add adds to the sums of the stacks of an agent. A difference below zero wraps around.
func (x journalBook) add(a Agent, bytes uint64) {
	for _, root := range a.StackRoots {
		if x.sums[root] += bytes; x.sums[root] == 0 {
			delete(x.sums, root)
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

// ending is the end of an agent.
type ending struct {
	at time.Time
	id string
}

func (e ending) compare(other ending) int {
	return cmp.Or(e.at.Compare(other.at), cmp.Compare(e.id, other.id))
}

func oldestFirst(list []Agent) []Agent {
	slices.SortFunc(list, func(a, b Agent) int { return cmp.Compare(a.Position, b.Position) })
	return list
}
