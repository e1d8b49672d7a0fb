package agents

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/agents/gate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// RulesOf returns the rules of a spec. What the spec leaves open has its default.
func RulesOf(spec *agboxv1.AgentSpec) Rules {
	beat, retry := spec.GetHeartbeat(), spec.GetRetry()
	rules := Rules{
		ReadyStart: spec.GetReady() <= agboxv1.AgentReady_AGENT_READY_START,
		Revival:    revivals[spec.GetRevival()],
		Retry: RetryRules{
			Attempts:  cmp.Or(retry.GetAttempts(), defaultAttempts),
			SameError: cmp.Or(retry.GetSameError(), defaultSameError),
			OOM:       cmp.Or(retry.GetOom(), defaultOOM),
			Delays:    defaultDelays(),
		},
		Budget: budgetOf(spec.GetBudget()),
		Breaker: BreakerLimits{
			Failures: cmp.Or(spec.GetBreaker().GetFailures(), defaultFailures),
			Window:   length(spec.GetBreaker().GetWindow(), defaultWindow),
			Cooldown: length(spec.GetBreaker().GetCooldown(), defaultCooldown),
		},
		Heartbeat: HeartbeatRules{
			Interval: length(beat.GetInterval(), defaultInterval),
			Required: beat.GetRequired(),
			Stale:    length(beat.GetStale(), defaultStale),
			Escalate: length(beat.GetEscalate(), defaultEscalate),
			Crashed:  length(beat.GetCrashed(), defaultCrashed),
			Zombie:   length(beat.GetZombie(), defaultZombie),
			Durable:  length(beat.GetDurable(), defaultDurable),
		},
		Context: gate.Limits{
			Aging:      cmp.Or(spec.GetContext().GetAging(), gate.Default.Aging),
			Dying:      cmp.Or(spec.GetContext().GetDying(), gate.Default.Dying),
			FinalCalls: cmp.Or(spec.GetContext().GetFinalCalls(), gate.Default.FinalCalls),
		},
		Drain:        drainOf(spec.GetDrain()),
		IdleTimeout:  length(spec.GetIdleTimeout(), defaultIdleTimeout),
		CleanupAfter: length(spec.GetCleanupAfter(), defaultCleanupAfter),
		LeaseTTL:     length(spec.GetLeaseTtl(), defaultLeaseTTL),
	}
	if rules.PlanningTools = spec.GetPlanningTools(); len(rules.PlanningTools) == 0 {
		rules.PlanningTools = gate.Reading
	}
	if cost := StackOf(spec).CostMicroUSD; cost > 0 && (rules.Budget.CostMicroUSD == 0 || rules.Budget.CostMicroUSD > cost) {
		rules.Budget.CostMicroUSD = cost
	}
	rules.Probes, rules.Calls = probesOf(spec, rules.Heartbeat), callsOf(spec.GetCalls())
	if len(retry.GetDelays()) > 0 {
		rules.Retry.Delays = rules.Retry.Delays[:0]
		for _, d := range retry.GetDelays() {
			rules.Retry.Delays = append(rules.Retry.Delays, d.AsDuration())
		}
	}
	return rules
}

// The defaults of AgentSpec. Those of the ladder, the drain, the retries, the budget and
// the breaker are those of the requirements, rows 51 to 55, 84, 128 to 139 and 166 to 167.
const (
	defaultInterval     = 15 * time.Second
	defaultStale        = 30 * time.Second
	defaultEscalate     = 45 * time.Second
	defaultCrashed      = 90 * time.Second
	defaultZombie       = 5 * time.Minute
	defaultDurable      = 30 * time.Second
	defaultAttempts     = 5
	defaultSameError    = 3
	defaultOOM          = 2
	defaultInputTokens  = 500_000
	defaultCostMicroUSD = 5_000_000
	defaultFailures     = 3
	defaultWindow       = 15 * time.Minute
	defaultCooldown     = 30 * time.Minute
	defaultPreStop      = 5 * time.Second
	defaultStep         = 45 * time.Second
	defaultCleanup      = 10 * time.Second
	defaultBuffer       = 5 * time.Second
	defaultIdleTimeout  = 30 * time.Minute
	defaultCleanupAfter = 5 * time.Minute
	defaultLeaseTTL     = 5 * time.Minute
)

func defaultDelays() []time.Duration {
	return []time.Duration{5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute}
}

var revivals = map[agboxv1.AgentRevival]Revival{
	agboxv1.AgentRevival_AGENT_REVIVAL_REAP: Reap,
	agboxv1.AgentRevival_AGENT_REVIVAL_ASK:  Ask,
}

// callsOf returns the limits of a spec with every default, rows 73 to 76 of the
// requirements.
func callsOf(c *agboxv1.AgentCalls) CallLimits {
	limits := CallLimits{
		Connect:  length(c.GetConnect(), 30*time.Second),
		Response: length(c.GetResponse(), 120*time.Second),
		LLMTotal: length(c.GetLlmTotal(), 300*time.Second),
		LLMChunk: length(c.GetLlmChunk(), 60*time.Second),
		Tool:     length(c.GetTool(), 60*time.Second),
		Tools: map[string]time.Duration{
			"kubectl_apply": 30 * time.Second, "kubectl_get": 15 * time.Second, "file_read": 10 * time.Second, "file_write": 10 * time.Second,
			"browser_navigate": 120 * time.Second, "browser_screenshot": 30 * time.Second, "http_request": 120 * time.Second,
			"git_clone": 300 * time.Second, "git_push": 60 * time.Second,
		},
	}
	for name, d := range c.GetTools() {
		limits.Tools[name] = d.AsDuration()
	}
	return limits
}

func drainOf(d *agboxv1.AgentDrain) DrainRules {
	return DrainRules{
		PreStop: length(d.GetPreStop(), defaultPreStop),
		Step:    length(d.GetStep(), defaultStep),
		Cleanup: length(d.GetCleanup(), defaultCleanup),
		Buffer:  length(d.GetBuffer(), defaultBuffer),
	}
}

// probesOf returns the probes of a spec with every default.
func probesOf(s *agboxv1.AgentSpec, beat HeartbeatRules) Probes {
	p := Probes{
		Startup:     probeOf(s.GetProbes().GetStartup(), defaultStartup),
		AwaitReport: s.GetReady() == agboxv1.AgentReady_AGENT_READY_REPORT,
		AwaitReady:  s.GetReady() == agboxv1.AgentReady_AGENT_READY_PROBE,
	}
	if live := s.GetProbes().GetLiveness(); live != nil {
		p.Liveness = probeOf(live, defaultLiveness)
		if p.Liveness.Report {
			p.Liveness.MaxSilence = beat.Interval + p.Liveness.Timeout
		}
	}
	if ready := s.GetProbes().GetReadiness(); ready != nil || p.AwaitReady {
		p.Readiness = probeOf(ready, defaultReadiness)
	}
	return p
}

// probeOf returns a probe. What it leaves open is as in unset.
func probeOf(p *agboxv1.AgentProbe, unset Probe) Probe {
	probe := unset
	if p.GetHttp() != "" || len(p.GetExec()) > 0 || p.GetReport() {
		probe.Port, probe.Path = endpoint(p.GetHttp())
		probe.Command, probe.Report = p.GetExec(), p.GetReport()
	}
	probe.Period, probe.Timeout = length(p.GetPeriod(), unset.Period), length(p.GetTimeout(), unset.Timeout)
	probe.Failures = cmp.Or(p.GetFailures(), unset.Failures)
	return probe
}

// StackOf returns the stack of which an agent is the root. Without a name there is none.
func StackOf(spec *agboxv1.AgentSpec) StackRules {
	s := spec.GetStack()
	rules := StackRules{Name: s.GetName(), Agents: int(s.GetAgents()), InboxBytes: s.GetInboxBytes(), JournalBytes: s.GetJournalBytes()}
	if s.GetCostUsd() != "" {
		rules.CostMicroUSD = microUSD(s.GetCostUsd())
	}
	return rules
}

// WithinStack returns the spec with a budget that is no larger than what the stack of which the
// agent is the root may cost. All others in the stack have parts of that budget.
func WithinStack(spec *agboxv1.AgentSpec) *agboxv1.AgentSpec {
	most, budget := StackOf(spec).CostMicroUSD, budgetOf(spec.GetBudget())
	if most == 0 || budget.CostMicroUSD > 0 && budget.CostMicroUSD <= most {
		return spec
	}
	spec = proto.CloneOf(spec)
	spec.Budget = &agboxv1.AgentBudget{InputTokens: &budget.InputTokens, CostUsd: dollars(most)}
	return spec
}

func budgetOf(b *agboxv1.AgentBudget) Budget {
	budget := Budget{InputTokens: defaultInputTokens, CostMicroUSD: defaultCostMicroUSD}
	if b != nil && b.InputTokens != nil {
		budget.InputTokens = b.GetInputTokens()
	}
	if b.GetCostUsd() != "" {
		budget.CostMicroUSD = microUSD(b.GetCostUsd())
	}
	return budget
}

// microUSD converts an amount with up to six decimals. The rules of the message allow no
// other text.
func microUSD(amount string) uint64 {
	whole, fraction, _ := strings.Cut(amount, ".")
	fraction = (fraction + "000000")[:6]
	dollars, _ := strconv.ParseUint(whole, 10, 64) // at most nine digits
	micro, _ := strconv.ParseUint(fraction, 10, 64)
	return dollars*1e6 + micro
}

// dollars writes an amount as specs have it.
func dollars(micro uint64) string { return fmt.Sprintf("%d.%06d", micro/1e6, micro%1e6) }

func length(d *durationpb.Duration, unset time.Duration) time.Duration {
	if d == nil {
		return unset
	}
	return d.AsDuration()
}
