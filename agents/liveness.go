package agents

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
