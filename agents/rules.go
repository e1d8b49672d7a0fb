package agents

import (
	"time"

	"github.com/agbox/agbox/agents/gate"
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

// FirstPhase is the state that a new incarnation works in, as in its journal: PENDING until
// its program has reported that it is ready, if it must.
func (r Rules) FirstPhase() string {
	if r.Probes.AwaitReport {
		return stateWords[Pending]
	}
	return stateWords[Executing]
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

// Budget bounds what all incarnations together may use. 0 means no bound.
type Budget struct {
	InputTokens  uint64
	CostMicroUSD uint64
}

// sameErrors is the number of messages that a record keeps, and so the greatest value of
// RetryRules.SameError.
const sameErrors = 3

// maxUncounted is how often in a row an end may be no crash without any progress. A
// program that always exits with 143 would otherwise use its budget up unnoticed.
const maxUncounted = 5
