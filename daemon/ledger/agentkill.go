package ledger

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/store"
)

// askToEnd delivers the message that asks an agent to end by itself, with the request.
func (l *Ledger) askToEnd(tx *store.Tx, before, after Agent) error {
	if before.EndsItself() || !after.EndsItself() || after.Over() {
		return nil
	}
	return l.deliver(tx, after.ID, sigterm(after.ID))
}

// sigterm is the message that asks an agent to end.
func sigterm(agentID string) *agboxv1.AgentMessage {
	return &agboxv1.AgentMessage{
		Key: "SIGTERM", Kind: agboxv1.MessageKind_MESSAGE_KIND_SIGTERM, From: agentID,
		Text: "[SIGTERM] You are asked to end: finish what you do, close what you have open, report your outcome and exit. Acknowledge this message within 30 seconds.",
	}
}

// Acknowledged reports whether an agent that is asked to end has acknowledged that.
func (l *Ledger) Acknowledged(ctx context.Context, agentID string) (yes bool, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		seq := tx.MessageWithKey(agentID, sigterm(agentID))
		if seq == 0 {
			yes = true // so many messages followed it that its key is forgotten
			return nil
		}
		first := tx.Messages(agentID, seq-1, 1, 0).Messages
		yes = len(first) == 0 || first[0].GetSeq() != seq
		return nil
	})
	return yes, err
}
