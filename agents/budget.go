package agents

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/gate"
)

// Exhausted reports whether nothing more may be used.
func (b Budget) Exhausted(used *agboxv1.AgentUsage) bool {
	return !gate.Budget(b).Admits(amount(used), gate.Amount{})
}

// Sentence says that the budget is used up, after the given number of crashes.
func (b Budget) Sentence(p *agboxv1.AgentProgress, crashes uint32) string {
	return gate.Budget(b).Sentence(amount(p.GetTotal()), amount(p.GetRefused()), crashes)
}

// OverBudget reports whether nothing more may be used, or a call was refused because it
// would have used too much.
func (r Record) OverBudget(b Budget) bool {
	return b.Exhausted(r.Consumed()) || r.Progress.GetRefused() != nil
}

// amount is the part of a usage that a budget bounds.
func amount(used *agboxv1.AgentUsage) gate.Amount {
	return gate.Amount{InputTokens: used.GetInputTokens(), CostMicroUSD: used.GetCostMicroUsd()}
}
