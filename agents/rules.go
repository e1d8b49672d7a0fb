package agents

import (
	"strconv"
	"strings"
	"time"

	"github.com/agbox/agbox/agents/gate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Rules are the parameters of an agent: those of its spec, with every default filled in.
type Rules struct {
	// ReadyStart means that the program counts as working from its start, so one that
	// never speaks may end with 0 and has then completed the agent.
	ReadyStart bool
	// Revival is what to do about an orphaned agent.
	Revival Revival
	Retry   RetryRules
	Budget  Budget
	Breaker BreakerLimits
	// Heartbeat is the ladder of Liveness.
	Heartbeat HeartbeatRules
	// Context are the limits of the context of an incarnation.
	Context gate.Limits
	Probes  Probes
	Calls   CallLimits
	// Drain has the phases of a drain.
	Drain DrainRules
	// IdleTimeout is how long an incarnation may idle in a pause before it is drained. 0
	// means for ever.
	IdleTimeout time.Duration
	// CleanupAfter is how long after the end an owned sandbox stays.
	CleanupAfter time.Duration
	// LeaseTTL is how long an agent without an incarnation keeps its leases.
	LeaseTTL time.Duration
	// PlanningTools are the tools that only read.
	PlanningTools []string
}

// RetryRules say what follows a crash.
type RetryRules struct {
	// Attempts is the number of crashes that ends the agent.
	Attempts uint32
	// Delays are the pauses after the first, second, ... crash. The last one repeats.
	Delays []time.Duration
	// SameError is the number of crashes in a row with the same message that ends the
	// agent; at most 3. OOM is that of crashes that were all for lack of memory. 0 means
	// never.
	SameError, OOM uint32
}

// Revival is the policy for an agent whose incarnation was lost with its container, its
// engine or its host.
type Revival uint8

// The policies.
const (
	// Revive goes on in a new incarnation at once.
	Revive Revival = iota
	// Reap ends the agent.
	Reap
	// Ask leaves it until somebody decides.
	Ask
)

// Budget bounds what all incarnations together may use. 0 means no bound.
type Budget struct {
	InputTokens  uint64
	CostMicroUSD uint64
}

// CallLimits are how long the calls of a program may take. 0 means no limit.
type CallLimits struct {
	Connect, Response, LLMTotal, LLMChunk, Tool time.Duration
	// Tools has the limits of tools with a name.
	Tools map[string]time.Duration
}

// DrainRules are the lengths of the phases of a drain, which follow each other. The
// supervisor keeps to them by its own clock.
type DrainRules struct {
	// PreStop lasts from the request to SIGTERM. Step is for the step under way, Cleanup for
	// saving and exiting, Buffer until SIGKILL.
	PreStop, Step, Cleanup, Buffer time.Duration
}

// HeartbeatRules are the ladder of Liveness, in ascending order.
type HeartbeatRules struct {
	// Interval is the time between two beats.
	Interval time.Duration
	// Required arms the ladder from the start. Otherwise the first beat does.
	Required bool
	// Stale, Escalate, Crashed and Zombie are the silences after which an incarnation is
	// UNHEALTHY, ESCALATED, CRASHED and ZOMBIE.
	Stale, Escalate, Crashed, Zombie time.Duration
	// Durable is how often the newest beat is written to disk.
	Durable time.Duration
}

// Probes are the checks that the supervisor makes of a program.
type Probes struct {
	Liveness, Readiness, Startup Probe
	// AwaitReport and AwaitReady count to the start until the program has reported that it
	// is ready, or until its readiness probe has succeeded.
	AwaitReport, AwaitReady bool
}

// Probe is one check. It has at most one target: an HTTP server, a command or the reports
// of the program itself.
type Probe struct {
	Port    uint16
	Path    string
	Command []string
	Report  bool
	// MaxSilence is how old the newest beat may be if Report is set. 0 means that beats do
	// not count.
	MaxSilence time.Duration
	// Period is the time between two checks, Timeout how long one may take, Failures how
	// many in a row count.
	Period, Timeout time.Duration
	Failures        uint32
}

// sameErrors is the number of messages that a record keeps, and so the greatest value of
// RetryRules.SameError.
const sameErrors = 3

// maxUncounted is how often in a row an end may be no crash without any progress. A
// program that always exits with 143 would otherwise use its budget up unnoticed.
const maxUncounted = 5

// FirstPhase is the state that a new incarnation works in, as in its journal: PENDING until
// its program has reported that it is ready, if it must.
func (r Rules) FirstPhase() string {
	if r.Probes.AwaitReport {
		return stateWords[Pending]
	}
	return stateWords[Executing]
}

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

// maxDrain is the longest drain.
const maxDrain = 65 * time.Second

// Total is the time from the request to SIGKILL.
func (d DrainRules) Total() time.Duration { return d.PreStop + d.Step + d.Cleanup + d.Buffer }

// DrainedFor is the reason of the pause after a drain of the current incarnation, which has
// ended. What asked for the drain is still in the record, unless it is the sandbox.
func DrainedFor(r Record) agboxv1.PauseReason {
	switch {
	case r.PauseWanted != nil:
		return r.PauseWanted.GetReason()
	case r.State == Paused && !r.Pause.Woken:
		return agboxv1.PauseReason_PAUSE_REASON_IDLE
	}
	return agboxv1.PauseReason_PAUSE_REASON_DRAINED
}

// warningSlack is added to Interval before a beat counts as missing, as a part of it: 2 s
// of 15 s. A beat that is on its way must not show a warning.
const warningSlack = 2.0 / 15

// Liveness is how alive an incarnation looks that has been silent for the given time. It
// is unspecified until the ladder is armed.
func Liveness(silent time.Duration, armed bool, rules HeartbeatRules) agboxv1.AgentLiveness {
	switch {
	case !armed && !rules.Required:
		return agboxv1.AgentLiveness_AGENT_LIVENESS_UNSPECIFIED
	case silent >= rules.Zombie:
		return agboxv1.AgentLiveness_AGENT_LIVENESS_ZOMBIE
	case silent > rules.Crashed:
		return agboxv1.AgentLiveness_AGENT_LIVENESS_CRASHED
	case silent >= rules.Escalate:
		return agboxv1.AgentLiveness_AGENT_LIVENESS_ESCALATED
	case silent >= rules.Stale:
		return agboxv1.AgentLiveness_AGENT_LIVENESS_UNHEALTHY
	case silent >= rules.warning():
		return agboxv1.AgentLiveness_AGENT_LIVENESS_WARNING
	}
	return agboxv1.AgentLiveness_AGENT_LIVENESS_ACTIVE
}

func (h HeartbeatRules) warning() time.Duration {
	return h.Interval + time.Duration(float64(h.Interval)*warningSlack)
}

// Silences are the silences at which Liveness changes, ascending, in whole milliseconds.
func (h HeartbeatRules) Silences() []time.Duration {
	all := []time.Duration{h.warning(), h.Stale, h.Escalate, h.HungAfter(), h.Zombie}
	for i, d := range all {
		all[i] = (d + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	return all
}

// HungAfter is the silence at which an incarnation becomes CRASHED.
func (h HeartbeatRules) HungAfter() time.Duration {
	return h.Crashed.Truncate(time.Millisecond) + time.Millisecond
}

// The defaults of probes, rows 64 to 67 of the requirements.
var (
	defaultLiveness  = Probe{Port: 8086, Path: "/healthz", Period: 10 * time.Second, Timeout: 5 * time.Second, Failures: 3}
	defaultReadiness = Probe{Port: 8086, Path: "/readyz", Period: 5 * time.Second, Timeout: 3 * time.Second, Failures: 2}
	defaultStartup   = Probe{Period: 5 * time.Second, Timeout: 5 * time.Second, Failures: 12}
)

// endpoint splits "8086/healthz". The port is 0 if there is none.
func endpoint(text string) (port uint16, path string) {
	number, path, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return 0, ""
	}
	return uint16(n), "/" + path
}
