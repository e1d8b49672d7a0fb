package ledger

import (
	"math/bits"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
)

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
