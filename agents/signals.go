package agents

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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

func signalDue(r Record, seen Seen) time.Time {
	if seen.Signal.IsZero() {
		return time.Time{}
	}
	return r.SignalDue(seen.Signal)
}

// SignalFailed is the event of a message that was not acknowledged after all tries.
func SignalFailed(m *agboxv1.AgentMessage) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_SIGNAL_FAILED,
		Details: &agboxv1.AgentEvent_Signal{Signal: &agboxv1.AgentSignal{Seq: m.GetSeq(), Kind: m.GetKind(), From: m.GetFrom()}},
	}
}
