package store

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestKeysOfAnOlderDaemonAreFoundByTheKindOfTheirMessage: it had one name space for the keys of
// all messages.
func TestKeysOfAnOlderDaemonAreFoundByTheKindOfTheirMessage(t *testing.T) {
	s := newStore(t)
	own := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_SIGTERM, From: "a", Key: "SIGTERM"}
	text := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: "a", Key: "SIGTERM"}
	for _, row := range []struct {
		stored *agboxv1.AgentMessage
		want   uint64
	}{{own, 1}, {text, 0}} {
		mustUpdate(t, s, func(tx *Tx) error {
			m := &agboxv1.AgentMessage{Kind: row.stored.GetKind(), From: "a"}
			if err := tx.PutMessage("x", m); err != nil {
				return err
			}
			row.want *= m.GetSeq()
			return tx.put(bucketInboxKeys("x"), keyDigest("a", "", "SIGTERM"), number(m.GetSeq()))
		})
		mustView(t, s, func(tx *Tx) {
			if got := tx.MessageWithKey("x", own); got != row.want {
				t.Errorf("a key of a message of kind %s belongs to %d; want %d", row.stored.GetKind(), got, row.want)
			}
		})
	}
}
