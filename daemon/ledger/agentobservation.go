package ledger

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

const observationText = "The agent was paused and goes on now: the body says what changed meanwhile."

// tellObservation keeps the message that says what changed during a pause: it is in the inbox
// while a running incarnation has to take that observation, unless it was acknowledged. What
// has changed is not stored: it is added when the message is read. The message is not counted
// as unread, since it is about the wake and must not cause another one.
func (l *Ledger) tellObservation(tx *store.Tx, before, after Agent) error {
	due := dueObservation(after)
	if due == dueObservation(before) {
		return nil
	}
	box := l.inboxIn(tx, after.ID)
	if box.observation != 0 {
		if err := tx.RemoveMessage(after.ID, box.observation); err != nil {
			return err
		}
		box.observation = 0
	}
	if due != 0 {
		m := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION, From: agents.Init, Text: observationText, At: timestamppb.New(l.now())}
		if err := tx.PutMessage(after.ID, m); err != nil {
			return err
		}
		box = box.with(m, 1)
	}
	l.putInbox(tx, after.ID, box)
	return nil
}

// dueObservation is the observation that a running incarnation of the agent has to take, or 0.
func dueObservation(a Agent) uint64 {
	if a.Incarnation == nil {
		return 0
	}
	return a.PendingObservation()
}

// Observes reports whether the inbox of an agent has a message that says what changed during a
// pause.
func (l *Ledger) Observes(agentID string) bool {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.inboxes[agentID].observation != 0
}
