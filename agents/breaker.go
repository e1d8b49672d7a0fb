package agents

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// BreakerLimits say when the circuit breaker of a class opens, and for how long. They are
// those of the agent that crashes.
type BreakerLimits struct {
	// Failures is the number of different agents that must crash within Window.
	Failures uint32
	Window   time.Duration
	// Cooldown is how long no new agent of the class is begun. Then one is tried: the canary.
	Cooldown time.Duration
}

// maxCrashed bounds Breaker.crashed. It is the greatest value of BreakerLimits.Failures.
const maxCrashed = 1000

// Open reports whether new agents are refused, except for a canary.
func (b Breaker) Open() bool { return !b.Until.IsZero() }

// Admits reports whether a new agent may begin: the breaker is closed, or the agent is the
// canary or becomes it.
func (b Breaker) Admits(agentID string, now time.Time) bool {
	switch {
	case !b.Open(), b.Canary == agentID:
		return true
	}
	return b.Canary == "" && !now.Before(b.Until)
}

// After returns the events of init that follow from a change of an agent of the class.
// They belong in the transaction of that change.
func (b Breaker) After(before, after Record, limits BreakerLimits, now time.Time) []*agboxv1.AgentEvent {
	event := func(typ agboxv1.AgentEventType, agentID string) *agboxv1.AgentEvent {
		return &agboxv1.AgentEvent{Type: typ, Details: &agboxv1.AgentEvent_Breaker{Breaker: &agboxv1.AgentBreaker{Class: after.Class, AgentId: agentID}}}
	}
	opened := func() *agboxv1.AgentEvent {
		ev := event(agboxv1.AgentEventType_AGENT_BREAKER_OPENED, after.ID)
		ev.GetBreaker().Until = timestamppb.New(now.Add(limits.Cooldown))
		return ev
	}
	canary := b.Canary == after.ID
	switch {
	case after.Crashes > before.Crashes:
		events := []*agboxv1.AgentEvent{event(agboxv1.AgentEventType_AGENT_CLASS_CRASHED, after.ID)}
		if canary || !b.Open() && b.withCrash(after.ID, now).within(limits.Window, now) >= int(limits.Failures) {
			events = append(events, opened())
		}
		return events
	case after.Incarnations > before.Incarnations && before.State == Pending && b.Open() && !canary:
		return []*agboxv1.AgentEvent{event(agboxv1.AgentEventType_AGENT_BREAKER_CANARY, after.ID)}
	case !canary || before.Over() || !after.Over():
		return nil
	case after.State == Completed:
		return []*agboxv1.AgentEvent{event(agboxv1.AgentEventType_AGENT_BREAKER_CLOSED, after.ID)}
	case after.State == Aborted || ofSandbox(after.Done.GetErrorCode()):
		return []*agboxv1.AgentEvent{event(agboxv1.AgentEventType_AGENT_BREAKER_CANARY, "")} // it has shown nothing
	}
	return []*agboxv1.AgentEvent{opened()}
}

// within counts the different agents that have crashed within the window.
func (b Breaker) within(window time.Duration, now time.Time) int {
	n := 0
	for _, c := range b.crashed {
		if now.Sub(c.at) < window {
			n++
		}
	}
	return n
}

// withCrash returns the breaker after a crash of an agent.
func (b Breaker) withCrash(agentID string, at time.Time) Breaker {
	b.crashed = append(slices.DeleteFunc(slices.Clone(b.crashed), func(c crash) bool { return c.agentID == agentID }), crash{agentID, at})
	b.crashed = b.crashed[max(0, len(b.crashed)-maxCrashed):]
	return b
}

// Crashed has the ids of the agents that have crashed since the breaker was closed, at most
// maxCrashed.
func (b Breaker) Crashed() []string {
	ids := make([]string, len(b.crashed))
	for i, c := range b.crashed {
		ids[i] = c.agentID
	}
	return ids
}

// ofSandbox reports whether an agent has failed because of its sandbox.
func ofSandbox(errorCode string) bool { return strings.HasPrefix(errorCode, "SANDBOX_") }

// foldBreaker returns the record of init after a change of a breaker.
func foldBreaker(r Record, ev *agboxv1.AgentEvent) Record {
	d := ev.GetBreaker()
	b := r.Breakers[d.GetClass()]
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_CLASS_CRASHED:
		b = b.withCrash(d.GetAgentId(), ev.GetOccurredAt().AsTime())
	case agboxv1.AgentEventType_AGENT_BREAKER_OPENED:
		b.Until, b.Canary = d.GetUntil().AsTime(), ""
	case agboxv1.AgentEventType_AGENT_BREAKER_CANARY:
		b.Canary = d.GetAgentId()
	case agboxv1.AgentEventType_AGENT_BREAKER_CLOSED:
		b = Breaker{}
	}
	r.Breakers = maps.Clone(r.Breakers)
	if r.Breakers == nil {
		r.Breakers = make(map[string]Breaker)
	}
	r.Breakers[d.GetClass()] = b
	return r
}
