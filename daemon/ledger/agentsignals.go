package ledger

import (
	"context"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// Signal is when an agent was told last of a message about another agent that it has not
// acknowledged; of several, the longest ago. It is zero if there is none.
func (l *Ledger) Signal(agentID string) (oldest time.Time) {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	for _, s := range l.mail.inboxes[agentID].signals {
		if !s.givenUp && (oldest.IsZero() || s.last.Before(oldest)) {
			oldest = s.last
		}
	}
	return oldest
}

// RepeatSignals tries all messages of an agent again that are due: it is woken if it is IDLE,
// and its program can receive them. One that was tried often enough is given up: that is
// recorded, and the message stays in the inbox.
func (l *Ledger) RepeatSignals(ctx context.Context, agentID string) error {
	return l.store.Update(ctx, func(tx *store.Tx) error {
		a, box, now := l.agentIn(tx, agentID), l.inboxIn(tx, agentID), l.now()
		if a.Incarnation == nil || a.Over() {
			return nil
		}
		repeated := false
		for _, s := range box.signals {
			if s.givenUp || now.Before(a.SignalDue(s.last)) {
				continue
			}
			repeated, box.signals = true, box.without(s.seq)
			m, err := l.repeatSignal(tx, a, s.seq)
			if err != nil {
				return err
			}
			if m != nil {
				box = box.awaits(m, now)
			}
		}
		if !repeated {
			return nil
		}
		l.putInbox(tx, agentID, box)
		return l.wakeIdle(tx, l.agentIn(tx, agentID), "a message that it has not read")
	})
}

// repeatSignal counts one more try of a message, or gives it up. It returns the message, or
// nil if that cannot be read.
func (l *Ledger) repeatSignal(tx *store.Tx, a Agent, seq uint64) (*agboxv1.AgentMessage, error) {
	page := tx.Messages(a.ID, seq-1, 1, 0)
	if len(page.Messages) == 0 || page.Messages[0].GetSeq() != seq {
		return nil, nil
	}
	m := page.Messages[0]
	if m.GetTries() < agents.SignalTries {
		m.Tries++
		return m, tx.ReplaceMessage(a.ID, m)
	}
	m.GivenUp = true
	if err := tx.ReplaceMessage(a.ID, m); err != nil {
		return nil, err
	}
	_, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error { return t.append(a.ID, agents.SignalFailed(m)) })
	return m, err
}
