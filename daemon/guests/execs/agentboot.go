package execs

import (
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
)

// agentBoot says what the supervisor must know about an incarnation.
func agentBoot(a ledger.Agent) *guestv1.AgentBoot {
	rules, used := agent.RulesOf(a.Spec), a.Incarnation.Before.GetTotal()
	return &guestv1.AgentBoot{
		AgentId: a.ID, Incarnation: a.Incarnation.N,
		ContextAging: rules.Context.Aging, ContextDying: rules.Context.Dying, ContextFinalCalls: rules.Context.FinalCalls,
		BudgetInputTokens: rules.Budget.InputTokens, BudgetCostMicroUsd: rules.Budget.CostMicroUSD,
		UsedInputTokens: used.GetInputTokens(), UsedCostMicroUsd: used.GetCostMicroUsd(), Crashes: a.Crashes,
		Probes: probesOf(rules.Probes),
	}
}
