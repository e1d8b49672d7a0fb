package agent

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/gate"
)

// Exhausted reports whether nothing more may be used.
func (b Budget) Exhausted(used *agboxv1.AgentUsage) bool {
	return !gate.Budget(b).Admits(amount(used), gate.Amount{})
}

// Sentence says that the budget is used up, after the given number of crashes.
func (b Budget) Sentence(used *agboxv1.AgentUsage, crashes uint32) string {
	return gate.Budget(b).Sentence(amount(used), gate.Amount{}, crashes)
}

// amount is the part of a usage that a budget bounds.
func amount(used *agboxv1.AgentUsage) gate.Amount {
	return gate.Amount{InputTokens: used.GetInputTokens(), CostMicroUSD: used.GetCostMicroUsd()}
}
