package supervisor

import (
	"cmp"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"

	calls "github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
)

// bounds converts which calls an incarnation may make.
func bounds(b *guestv1.AgentBoot) agentsocket.Bounds {
	return agentsocket.Bounds{
		Context: calls.Limits{
			Aging:      cmp.Or(b.GetContextAging(), calls.Default.Aging),
			Dying:      cmp.Or(b.GetContextDying(), calls.Default.Dying),
			FinalCalls: cmp.Or(b.GetContextFinalCalls(), calls.Default.FinalCalls),
		},
		Budget:   calls.Budget{InputTokens: b.GetBudgetInputTokens(), CostMicroUSD: b.GetBudgetCostMicroUsd()},
		Former:   calls.Amount{InputTokens: b.GetUsedInputTokens(), CostMicroUSD: b.GetUsedCostMicroUsd()},
		Children: calls.Amount{InputTokens: b.GetChildrenInputTokens(), CostMicroUSD: b.GetChildrenCostMicroUsd()},
		Spent:    calls.Amount{InputTokens: b.GetSpentInputTokens(), CostMicroUSD: b.GetSpentCostMicroUsd()},
		Crashes:  b.GetCrashes(),
		Reading:  b.GetPlanningTools(),
	}
}
