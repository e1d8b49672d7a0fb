package execs

import (
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
)

// agentBoot is what the supervisor must know about an incarnation to decide without a
// daemon.
func agentBoot(a ledger.Agent) *guestv1.AgentBoot {
	rules, used := agents.RulesOf(a.Spec), a.Incarnation.Before.GetTotal()
	boot := &guestv1.AgentBoot{
		AgentId: a.ID, Incarnation: a.Incarnation.N,
		Checkpoint: a.Checkpoint().GetSeq(), Model: a.Spec.GetModel(), UsedOutputTokens: used.GetOutputTokens(),
		ContextAging: rules.Context.Aging, ContextDying: rules.Context.Dying, ContextFinalCalls: rules.Context.FinalCalls,
		BudgetInputTokens: rules.Budget.InputTokens, BudgetCostMicroUsd: rules.Budget.CostMicroUSD,
		UsedInputTokens: used.GetInputTokens(), UsedCostMicroUsd: used.GetCostMicroUsd(), Crashes: a.Crashes,
		Probes: probesOf(rules.Probes), Calls: callsOf(rules.Calls), Phase: rules.FirstPhase(), Files: a.Files(),
		PlanningTools: rules.PlanningTools,
	}
	if rules.Probes.AwaitReport {
		boot.Observation = a.PendingObservation()
	}
	addHeartbeat(boot, rules.Heartbeat)
	return boot
}

func addHeartbeat(boot *guestv1.AgentBoot, rules agents.HeartbeatRules) {
	for _, silence := range rules.Silences() {
		boot.SilencesMs = append(boot.SilencesMs, uint64(silence.Milliseconds()))
	}
	boot.BeatRequired, boot.BeatIntervalMs = rules.Required, uint64(rules.Interval.Milliseconds())
	boot.DurableMs = uint64(rules.Durable.Milliseconds())
	boot.HungAfterMs = uint64(rules.HungAfter().Milliseconds())
}
