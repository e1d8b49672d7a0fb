package incarnations

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

// contexts has the words for a context by their names in a journal.
var contexts = map[string]agboxv1.AgentContext{
	gate.Healthy:  agboxv1.AgentContext_AGENT_CONTEXT_HEALTHY,
	gate.Aging:    agboxv1.AgentContext_AGENT_CONTEXT_AGING,
	gate.Dying:    agboxv1.AgentContext_AGENT_CONTEXT_DYING,
	gate.Draining: agboxv1.AgentContext_AGENT_CONTEXT_DRAINING,
	gate.Dead:     agboxv1.AgentContext_AGENT_CONTEXT_DEAD,
}

// contextEvent records the word for the context, which a row has changed.
func contextEvent(sum journal.Summary) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_CONTEXT,
		Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Context: contexts[sum.Context], ContextPercent: sum.Percent}},
	}
}

// succeeded reports whether an exec has ended because its context is used up, so that the
// next incarnation goes on. That one began to die and was then reaped, or ended by itself
// before: after its final calls a program has nothing left to do.
func succeeded(exec *agboxv1.ExecStatus, sum journal.Summary) bool {
	switch sum.Context {
	case gate.Dead:
		return !exec.GetOomKilled()
	case gate.Draining:
		return exec.GetExitCode() == 0 && exec.GetSignal() == 0
	}
	return false
}
