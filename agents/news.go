package agents

import (
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// News is what the change of an agent from before to after tells others, as the kind of the
// message about it. It is unspecified if nobody is told. A change tells one thing: an end
// counts more than the crash that led to it.
func News(before, after Record) agboxv1.MessageKind {
	switch {
	case after.Over() && !before.Over():
		return newsOfEnd(after)
	case after.Over():
		return agboxv1.MessageKind_MESSAGE_KIND_UNSPECIFIED
	case after.Crashes > before.Crashes:
		return agboxv1.MessageKind_MESSAGE_KIND_CRASH
	case after.AwaitsApproval() && !before.AwaitsApproval():
		return agboxv1.MessageKind_MESSAGE_KIND_APPROVAL
	case after.drainedNow() && !before.drainedNow():
		return agboxv1.MessageKind_MESSAGE_KIND_DRAIN
	case after.idles() && !before.idles():
		return agboxv1.MessageKind_MESSAGE_KIND_CHILD
	}
	return agboxv1.MessageKind_MESSAGE_KIND_UNSPECIFIED
}

func newsOfEnd(r Record) agboxv1.MessageKind {
	switch {
	case r.State == DeadLetter:
		return agboxv1.MessageKind_MESSAGE_KIND_DEAD_LETTER
	case r.State == Failed && r.Done.GetErrorCode() == agboxv1.ErrorReason_BUDGET_EXHAUSTED.String():
		return agboxv1.MessageKind_MESSAGE_KIND_BUDGET
	}
	return agboxv1.MessageKind_MESSAGE_KIND_CHILD
}

// idles reports whether an agent has nothing to do until it gets a message.
func (r Record) idles() bool {
	return r.State == Paused && r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_IDLE && !r.Pause.Woken
}

// drainedNow reports whether an agent is paused because others wanted its program to end, a
// user, its sandbox that stops, or those who do not hold it any more, or because it is stranded. SIGTERM from outside, after
// which it goes on at once, is no such wish, and neither is a start that agbox could not write
// down: Last is then the end of an incarnation before it.
func (r Record) drainedNow() bool {
	if r.State != Paused || r.Pause.Woken {
		return false
	}
	switch r.Pause.Reason {
	case agboxv1.PauseReason_PAUSE_REASON_REQUEST, agboxv1.PauseReason_PAUSE_REASON_UNHELD:
		return true
	case agboxv1.PauseReason_PAUSE_REASON_ORPHANED:
		return r.Pause.Stranded
	case agboxv1.PauseReason_PAUSE_REASON_DRAINED:
		return r.Unstarted == 0 && r.Last.GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED
	}
	return false
}

// newsKinds has the kind of the message about each change that others may be told of or not.
var newsKinds = map[agboxv1.MessageKind]agboxv1.AgentNews{
	agboxv1.MessageKind_MESSAGE_KIND_CRASH:       agboxv1.AgentNews_AGENT_NEWS_CRASH,
	agboxv1.MessageKind_MESSAGE_KIND_APPROVAL:    agboxv1.AgentNews_AGENT_NEWS_APPROVAL,
	agboxv1.MessageKind_MESSAGE_KIND_DRAIN:       agboxv1.AgentNews_AGENT_NEWS_DRAIN,
	agboxv1.MessageKind_MESSAGE_KIND_DEAD_LETTER: agboxv1.AgentNews_AGENT_NEWS_DEAD_LETTER,
	agboxv1.MessageKind_MESSAGE_KIND_BUDGET:      agboxv1.AgentNews_AGENT_NEWS_BUDGET,
	agboxv1.MessageKind_MESSAGE_KIND_BREAKER:     agboxv1.AgentNews_AGENT_NEWS_BREAKER,
}

// tells is the kind of the message with which a recipient is told what News or a breaker has.
// chosen are the changes of which that recipient is told; none means all. The result is
// unspecified if it is not told. Whatever is chosen, the parent is told of the end of its child,
// then by MESSAGE_KIND_CHILD.
func (r Record) tells(kind agboxv1.MessageKind, chosen []agboxv1.AgentNews, parent bool) agboxv1.MessageKind {
	news, choice := newsKinds[kind]
	switch {
	case choice && (len(chosen) == 0 || slices.Contains(chosen, news)):
		return kind
	case parent && (!choice || r.Over() && kind != agboxv1.MessageKind_MESSAGE_KIND_BREAKER):
		return agboxv1.MessageKind_MESSAGE_KIND_CHILD
	}
	return agboxv1.MessageKind_MESSAGE_KIND_UNSPECIFIED
}

// ToParent is the kind of the message with which the parent of an agent, which is init or not,
// is told what News or a breaker has; unspecified if it is not.
func (r Record) ToParent(kind agboxv1.MessageKind, tells *agboxv1.AgentTells, isInit bool) agboxv1.MessageKind {
	if isInit {
		return r.tells(kind, tells.GetInit(), true)
	}
	return r.tells(kind, tells.GetParent(), true)
}

// ToInit is ToParent for init if it is not the parent.
func (r Record) ToInit(kind agboxv1.MessageKind, tells *agboxv1.AgentTells) agboxv1.MessageKind {
	return r.tells(kind, tells.GetInit(), false)
}

// WakesOnMessage reports whether a message ends a pause for the reason. on is the agent's own
// wish. No message answers a question, so none ends a wait for an approval; what has a time, a
// lease, a loss or a successor to wait for goes on waiting for that. docs/agents.md has the table.
func WakesOnMessage(reason agboxv1.PauseReason, on agboxv1.AgentWakeOn) bool {
	switch reason {
	case agboxv1.PauseReason_PAUSE_REASON_IDLE:
		return true
	case agboxv1.PauseReason_PAUSE_REASON_UNHELD, agboxv1.PauseReason_PAUSE_REASON_REQUEST, agboxv1.PauseReason_PAUSE_REASON_DRAINED:
		return on == agboxv1.AgentWakeOn_AGENT_WAKE_ON_MESSAGE
	}
	return false
}

// The tries to tell an agent about another one.
const (
	// SignalTries is how often a message is tried.
	SignalTries = 3
	// SignalWait is how long the program may run after each try until it acknowledges the
	// message.
	SignalWait = 30 * time.Second
)

// IsSignal reports whether a message is about another agent, and so is tried several times.
func IsSignal(m *agboxv1.AgentMessage) bool {
	switch m.GetKind() {
	case agboxv1.MessageKind_MESSAGE_KIND_CHILD, agboxv1.MessageKind_MESSAGE_KIND_ADOPTED:
		return true
	}
	_, news := newsKinds[m.GetKind()]
	return news
}

// SignalDue is when the next try is due of a message that was tried last at a time. Only the
// time counts in which an incarnation could have acknowledged it.
func (r Record) SignalDue(last time.Time) time.Time {
	if r.Incarnation.BegunAt.After(last) {
		last = r.Incarnation.BegunAt
	}
	return last.Add(SignalWait)
}

// SignalFailed is the event of a message that was not acknowledged after all tries.
func SignalFailed(m *agboxv1.AgentMessage) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_SIGNAL_FAILED,
		Details: &agboxv1.AgentEvent_Signal{Signal: &agboxv1.AgentSignal{Seq: m.GetSeq(), Kind: m.GetKind(), From: m.GetFrom()}},
	}
}
