package execs

import (
	"context"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
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

// leastJournal is what an incarnation can report even if its stack has no room left: its
// outcome, for example.
const leastJournal = 64 << 10

// journalBytes is how large the journal of an incarnation may become because of the stacks
// that its agent is in. 0 means that they have no bound.
func (r *Runner) journalBytes(a ledger.Agent) uint64 {
	var least uint64
	for _, m := range r.ledger.UncountedJournals(a) {
		r.ledger.CountJournals(m, func(n uint32) uint64 { return r.journalOf(m, n) })
	}
	for _, stack := range r.ledger.StackJournals(a) {
		left := stack.Most - min(stack.Most, stack.Ended)
		for _, m := range stack.Running {
			left -= min(left, r.journalOf(m, m.Incarnation.N))
		}
		if left = max(left, leastJournal); least == 0 || left < least {
			least = left
		}
	}
	return least
}

// journalOf is the size of the journal of an incarnation, in bytes.
func (r *Runner) journalOf(a ledger.Agent, n uint32) uint64 {
	r.looked.Add(1)
	name := filepath.Join(r.paths.SandboxLogs(a.SandboxOf(n)), logs.JournalName(agents.ExecID(a.ID, n)))
	if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
		return uint64(info.Size())
	}
	return 0
}

// takesAgent refuses an incarnation of an agent if the supervisor is too old for its probes
// or its work. It would run the program without them, and never say that it is ready.
func (r *Runner) takesAgent(lk *links.Link, req *agboxv1.CreateExecRequest) error {
	a, ok := r.ledger.AgentOf(req.GetSandboxId(), req.GetExecId())
	if !ok || lk.Conn.Agents() {
		return nil
	}
	var cannot, without string
	switch p := agents.RulesOf(a.Spec).Probes; {
	case p.AwaitReady || p.AwaitReport || a.Spec.GetProbes() != nil:
		cannot, without = "check whether a program is ready or works", "without probes and with ready: start"
	case a.Spec.GetWork() != "":
		cannot, without = "hand over the work of an agent", "without work"
	default:
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
		"Sandbox %s was started by an older agbox, whose supervisor cannot %s. Create a new sandbox, or spawn the agent %s.",
		req.GetSandboxId(), cannot, without).With("sandbox_id", req.GetSandboxId())
}

// probesOf converts the probes of a program for its supervisor.
func probesOf(p agents.Probes) *guestv1.Probes {
	return &guestv1.Probes{
		Liveness: probeOf(p.Liveness), Readiness: probeOf(p.Readiness), Startup: probeOf(p.Startup),
		AwaitReport: p.AwaitReport, AwaitReady: p.AwaitReady,
	}
}

func probeOf(p agents.Probe) *guestv1.Probe {
	return &guestv1.Probe{
		Port: uint32(p.Port), Path: p.Path, Command: p.Command, Report: p.Report, MaxSilenceMs: roundedUp(p.MaxSilence),
		PeriodMs: roundedUp(p.Period), TimeoutMs: roundedUp(p.Timeout), Failures: p.Failures,
	}
}

// callsOf converts how long the calls of a program may take.
func callsOf(c agents.CallLimits) *guestv1.CallLimits {
	limits := &guestv1.CallLimits{
		ConnectMs: roundedUp(c.Connect), ResponseMs: roundedUp(c.Response), LlmTotalMs: roundedUp(c.LLMTotal), LlmChunkMs: roundedUp(c.LLMChunk),
		ToolMs: roundedUp(c.Tool), ToolsMs: make(map[string]uint64, len(c.Tools)),
	}
	for name, d := range c.Tools {
		limits.ToolsMs[name] = roundedUp(d)
	}
	return limits
}

// addWork adds the work of an agent, if it has one, to what its supervisor gets.
func (r *Runner) addWork(ctx context.Context, a ledger.Agent, boot *guestv1.AgentBoot) error {
	work, err := r.ledger.AgentWork(ctx, a.ID)
	if work != nil || a.Spec.GetWork() != "" { // its parent may have given it
		boot.Work = append([]byte{}, work...) // an empty file is a work too
	}
	return err
}
