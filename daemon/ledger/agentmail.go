package ledger

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/store"
)

// The bounds of messages from agents and users. makeRoom has that of agbox's own.
const (
	// maxMessage is the length of a text, in bytes.
	maxMessage = 64 << 10
	// maxInbox is the number of messages of agents in an inbox, and of those of users beside
	// them. maxInboxBytes is their size.
	maxInbox      = 1000
	maxInboxBytes = 1 << 20
)

// deliver puts a message into the inbox of an agent and wakes it if its pause allows that
// (agent.WakesOnMessage). It sets seq and time of the message. A message with sender, stream and key of an earlier one is not added
// again: it gets the seq of that. Messages of one sender are read in the order of their
// delivery.
//
// The error is AGENT_NOT_FOUND, AGENT_WRONG_STATE for an agent that has ended, or
// INBOX_FULL; the latter only for MESSAGE_KIND_TEXT. Then nothing was changed. The inbox of
// init always exists.
//
// It must not be called inside a change of the recipient itself (withinAgent).
func (l *Ledger) deliver(tx *store.Tx, to string, m *agboxv1.AgentMessage) error {
	a := l.agentIn(tx, to)
	switch {
	case to == agents.Init:
	case !a.Exists() || a.Deleted:
		return recipientNotFound(to)
	case a.Over():
		return cannot(a, "sent a message", "nobody would read it")
	}
	if m.GetKey() != "" {
		if seq := tx.MessageWithKey(to, m); seq != 0 {
			m.Seq = seq
			return nil
		}
	}
	if m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT {
		if err := l.makeRoom(tx, to); err != nil {
			return err
		}
	}
	box := l.inboxIn(tx, to)
	a.ID = to // init may have no record yet
	if err := l.admitMessage(tx, a, box, m); err != nil {
		return err
	}
	now := l.now()
	if m.At = timestamppb.New(now); agents.IsSignal(m) {
		m.Tries = 1
	}
	if err := tx.PutMessage(to, m); err != nil {
		return err
	}
	l.putInbox(tx, to, box.with(m, 1).awaits(m, now))
	l.putShares(tx, to, m, 1)
	err := l.wakeByMessage(tx, a, fmt.Sprintf("a message of %s", m.GetFrom()))
	l.stir(tx, to)
	return err
}

// wakeByMessage wakes an agent that has got a message, if its pause allows that. A drain is not
// taken back: its agent goes on once it is over. The message holds an agent that nobody holds.
func (l *Ledger) wakeByMessage(tx *store.Tx, a Agent, by string) error {
	if !a.Exists() || a.ID == agents.Init {
		return nil
	}
	_, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error {
		if err := t.holdByInbox(); err != nil {
			return err
		}
		on, wanted := t.a.Spec.GetWakeOn(), t.a.PauseWanted.GetReason()
		switch {
		case t.a.State == agents.Paused && !t.a.Pause.Woken && agents.WakesOnMessage(t.a.Pause.Reason, on):
			return t.wake(&agboxv1.AgentWake{By: by})
		case wanted == forRequest && agents.WakesOnMessage(wanted, on):
			return t.wantPause(forDrain, "A message came while it was drained.")
		case t.a.LastSequence == a.LastSequence:
			return errNothing
		}
		return nil
	})
	return err
}

// holdByInbox makes the messages that an agent has not acknowledged its holder, if it has no other
// and a message wakes it.
func (t *agentTxn) holdByInbox() error {
	if !t.a.Unheld() || !agents.WakesOnMessage(forUnheld, t.a.Spec.GetWakeOn()) || t.l.inboxIn(t.tx, t.a.ID).unread() == 0 {
		return nil
	}
	return t.open(agents.InboxHolder, 0)
}

// wakeIdle wakes an agent that is IDLE.
func (l *Ledger) wakeIdle(tx *store.Tx, a Agent, by string) error {
	if a.State != agents.Paused || a.Pause.Reason != forIdle || a.Pause.Woken {
		return nil
	}
	_, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error { return t.wake(&agboxv1.AgentWake{By: by}) })
	return err
}

// wakeForUnread wakes an agent that has become IDLE while it had messages, and one that a message
// wakes and that got one while it was drained because its sandbox stops.
func (l *Ledger) wakeForUnread(tx *store.Tx, before, after Agent) error {
	if after.LastSequence == before.LastSequence || l.inboxIn(tx, after.ID).unread() == 0 {
		return nil
	}
	if after.State == agents.Paused && after.Pause.Reason == forDrain && after.Pause.Begun > before.LastSequence && l.calledWhileStopping(tx, after) {
		return l.wakeByMessage(tx, after, "a message that came while its sandbox was stopped")
	}
	return l.wakeIdle(tx, after, "a message that it has not read")
}

// calledWhileStopping reports whether an agent has a message that came after its sandbox was
// requested to stop.
func (l *Ledger) calledWhileStopping(tx *store.Tx, a Agent) bool {
	sb, known := l.sandboxIn(tx, a.SandboxID)
	if !known || sb.Want != machine.WantStopped || !agents.WakesOnMessage(forDrain, a.Spec.GetWakeOn()) {
		return false
	}
	for page := (store.MessagePage{More: true}); page.More; {
		page = tx.Messages(a.ID, page.Next, messagePage, 0)
		for _, m := range page.Messages {
			if m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION && !m.GetAt().AsTime().Before(sb.StopRequestedAt) {
				return true
			}
		}
	}
	return false
}

// SendMessage delivers a text and returns its seq in the inbox.
func (l *Ledger) SendMessage(ctx context.Context, from, to, key, text string) (seq uint64, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		m := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: from, Key: key, Text: text}
		if err := l.deliver(tx, to, m); err != nil {
			return err
		}
		seq = m.GetSeq()
		return nil
	})
	return seq, err
}

// messagePage is how many messages are read at once.
const messagePage = 100

// Messages returns the oldest messages in the inbox of an agent after a seq, of at most
// maxBytes, but at least one. left is the number of further ones.
func (l *Ledger) Messages(ctx context.Context, agentID string, after uint64, maxBytes int) (list []*agboxv1.AgentMessage, left int, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		page := tx.Messages(agentID, after, messagePage, maxBytes)
		list = page.Messages
		if page.More {
			left = tx.CountMessages(agentID, page.Next)
		}
		return nil
	})
	return list, left, err
}

// NewestMessage is the highest seq of a message that an inbox ever had; 0 if it never had any.
func (l *Ledger) NewestMessage(ctx context.Context, agentID string) (seq uint64, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		seq = tx.NewestMessage(agentID)
		return nil
	})
	return seq, err
}

// Acknowledge removes the messages of an inbox up to a seq. Without any it writes nothing.
func (l *Ledger) Acknowledge(ctx context.Context, agentID string, upto uint64) error {
	if upto == 0 || l.Unread(agentID) == 0 && !l.Observes(agentID) {
		return nil
	}
	return l.store.Update(ctx, func(tx *store.Tx) error {
		box, removed := l.inboxIn(tx, agentID), 0
		if err := tx.RemoveMessages(agentID, upto, func(m *agboxv1.AgentMessage) {
			removed++
			box = box.with(m, -1)
			l.putShares(tx, agentID, m, -1)
		}); err != nil {
			return err
		}
		if removed > 0 {
			l.putInbox(tx, agentID, box)
			l.stir(tx, agentID) // its messages may have held it
		}
		return nil
	})
}
