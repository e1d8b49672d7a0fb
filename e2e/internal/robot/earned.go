package robot

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Deed is an incarnation whose program was killed, or died as planned: its agent may count a
// crash.
type Deed struct {
	Agent       string
	Incarnation uint32
}

// Limits say when the circuit breaker of a class may open.
type Limits struct {
	// Failures is how many agents must have crashed within Window.
	Failures int
	Window   time.Duration
}

// DefaultLimits are those of agents whose description has none.
var DefaultLimits = Limits{Failures: 3, Window: 15 * time.Minute}

// dying is how many equal crashes in a row end an agent whose description does not say that, and
// uncounted how many ends in a row without progress are no crashes.
const dying, uncounted = 3, 5

// Earned are the crashes, the dead letters and the openings of breakers.
type Earned struct {
	Crashes, DeadLetters, Refused int
	// Losses are ends that were no crashes, by the words of their kind.
	Losses int
	// Opened has a line for each opening of a breaker.
	Opened []string
	// Problems are what was not earned.
	Problems []string
}

// crime is a crash that was counted.
type crime struct {
	agent string
	at    time.Time
	// earned means that its program was killed or died by itself, not with its sandbox.
	earned bool
}

// court replays the events and compares what was counted with what was done.
type court struct {
	deeds  map[Deed]bool
	broke  map[Deed]string // what robots say that ended by an error of their own
	limits map[string]Limits
	class  map[string]string
	// ended is the newest end of an incarnation, and lost how many ends in a row counted nowhere.
	ended   map[string]*agboxv1.AgentEvent
	lost    map[string]int
	steps   map[string]uint64
	crashes map[string]uint32
	crimes  map[string][]crime
	// canary has the agent that is tried, by class, and open the classes whose breaker is or
	// was open.
	canary map[string]string
	open   map[string]bool
	Earned
}

// CheckEarned checks that no crash was counted but those of programs that were killed or died as
// planned, that no agent became a dead letter without three of them, that no breaker opened
// without enough agents with such crashes, and that no agent failed but by an open breaker. It
// does not use the rules of the daemon. deeds are the incarnations whose programs were killed.
func (f Family) CheckEarned(t *testing.T, deeds map[Deed]bool, limits map[string]Limits) Earned {
	t.Helper()
	all, broke := maps.Clone(deeds), make(map[Deed]string)
	for _, a := range f.Agents {
		for _, e := range f.Folder.Story(t, a.GetAgentId()).entries {
			switch of := (Deed{a.GetAgentId(), e.Incarnation}); e.What {
			case diary.Dies:
				all[of] = true
			case diary.Broke:
				broke[of] = e.Text
			}
		}
	}
	earned := judge(f.Events, all, broke, limits)
	for _, problem := range earned.Problems {
		t.Error(problem)
	}
	return earned
}

// judge replays the events.
func judge(events []*agboxv1.AgentEvent, deeds map[Deed]bool, broke map[Deed]string, limits map[string]Limits) Earned {
	c := court{
		deeds: deeds, broke: broke, limits: limits, class: make(map[string]string), ended: make(map[string]*agboxv1.AgentEvent),
		lost: make(map[string]int), steps: make(map[string]uint64), crashes: make(map[string]uint32), crimes: make(map[string][]crime),
		canary: make(map[string]string), open: make(map[string]bool),
	}
	for _, ev := range events {
		if ev.GetAgentId() == Root {
			c.breaker(ev)
		} else {
			c.agent(ev)
		}
	}
	return c.Earned
}

func (c *court) problem(format string, args ...any) {
	c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
}

// agent follows an event of an agent.
func (c *court) agent(ev *agboxv1.AgentEvent) {
	id := ev.GetAgentId()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_SPAWNED:
		c.class[id] = ev.GetSpawned().GetClass()
	case agboxv1.AgentEventType_AGENT_PROGRESS:
		if n := ev.GetProgress().GetSteps(); n > c.steps[id] {
			c.steps[id], c.lost[id] = n, 0
		}
	case agboxv1.AgentEventType_AGENT_CHECKPOINT:
		c.lost[id] = 0
	case agboxv1.AgentEventType_AGENT_INCARNATION_ENDED:
		c.ended[id] = ev
	case agboxv1.AgentEventType_AGENT_PAUSED:
		c.answered(ev, ev.GetPause().GetAttempt())
	case agboxv1.AgentEventType_AGENT_ENDED:
		c.answered(ev, ev.GetDone().GetAttempt())
		c.over(ev)
	}
}

// answered follows the event that answers the end of an incarnation. attempt is the number of
// crashes with it, 0 if it is none.
func (c *court) answered(ev *agboxv1.AgentEvent, attempt uint32) {
	id := ev.GetAgentId()
	end := c.ended[id]
	delete(c.ended, id)
	if attempt <= c.crashes[id] {
		if k := end.GetEnd().GetKind(); end != nil && k != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED && k != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED {
			c.lost[id]++
			c.Losses++
		}
		return
	}
	earned := c.deeds[Deed{id, end.GetIncarnation()}]
	if !earned && c.lost[id] < uncounted {
		c.problem("agent %s (class %q): the end of incarnation %d is counted as crash %d, and nobody killed it: %v; its diary says %q",
			id, c.class[id], end.GetIncarnation(), attempt, end.GetEnd(), c.broke[Deed{id, end.GetIncarnation()}])
	}
	c.Crashes++
	c.crashes[id], c.lost[id] = attempt, 0
	class := c.class[id]
	c.crimes[class] = append(c.crimes[class], crime{id, ev.GetOccurredAt().AsTime(), earned})
}

// over follows the end of an agent.
func (c *court) over(ev *agboxv1.AgentEvent) {
	id := ev.GetAgentId()
	switch ev.GetState() {
	case agboxv1.AgentState_AGENT_STATE_DEAD_LETTER:
		c.DeadLetters++
		n := 0
		for _, crime := range c.crimes[c.class[id]] {
			if crime.agent == id && crime.earned {
				n++
			}
		}
		if n < dying {
			c.problem("agent %s is a dead letter after %d crashes that were its own: %s", id, n, ev.GetDone().GetMessage())
		}
	case agboxv1.AgentState_AGENT_STATE_FAILED:
		c.Refused++
		if ev.GetDone().GetErrorCode() != agboxv1.ErrorReason_CLASS_BREAKER_OPEN.String() || !c.open[c.class[id]] {
			c.problem("agent %s has failed: %s: %s", id, ev.GetDone().GetErrorCode(), ev.GetDone().GetMessage())
		}
	}
}

// breaker follows an event of the root: it has the breakers of all classes.
func (c *court) breaker(ev *agboxv1.AgentEvent) {
	class := ev.GetBreaker().GetClass()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_BREAKER_CANARY:
		c.canary[class] = ev.GetBreaker().GetAgentId()
	case agboxv1.AgentEventType_AGENT_BREAKER_CLOSED:
		c.canary[class] = ""
		c.crimes[class] = nil
	case agboxv1.AgentEventType_AGENT_BREAKER_OPENED:
		limits, named := c.limits[class]
		if !named {
			limits = DefaultLimits
		}
		at := ev.GetOccurredAt().AsTime()
		guilty := make(map[string]bool)
		for _, crime := range c.crimes[class] {
			if crime.earned && at.Sub(crime.at) < limits.Window {
				guilty[crime.agent] = true
			}
		}
		why := fmt.Sprintf("%q at position %d, because %v crashed", class, ev.GetPosition(), slices.Sorted(maps.Keys(guilty)))
		if byCanary := c.canary[class] != "" && guilty[c.canary[class]]; len(guilty) < limits.Failures && !byCanary {
			c.problem("the breaker of the class %s, and it takes %d", why, limits.Failures)
		}
		c.open[class], c.canary[class] = true, ""
		c.Opened = append(c.Opened, why)
	}
}

// String counts them.
func (e Earned) String() string {
	return fmt.Sprintf("%d crashes, %d losses, %d dead letters, %d refused by a breaker, breakers opened: %v", e.Crashes, e.Losses, e.DeadLetters, e.Refused, e.Opened)
}
