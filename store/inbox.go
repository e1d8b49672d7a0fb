package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// keptKeys is how many of the newest messages of an inbox have their keys remembered, also
// after they were acknowledged.
const keptKeys = 4096

// PutMessage adds a message to the inbox of an agent and sets its seq, which is higher than
// that of every message before it. If it has a key, the key is remembered.
func (t *Tx) PutMessage(agentID string, m *agboxv1.AgentMessage) error {
	if !ids.Valid(agentID) {
		return invalidID("agent", agentID)
	}
	inbox, err := t.write(bucketInbox(agentID))
	if err != nil {
		return err
	}
	if m.Seq, err = inbox.NextSequence(); err != nil {
		return err
	}
	if err := t.putMessage(bucketInbox(agentID), number(m.GetSeq()), m); err != nil {
		return err
	}
	if m.GetKey() == "" {
		return nil
	}
	digest := messageDigest(m)
	return errors.Join(
		t.put(bucketInboxKeys(agentID), digest, number(m.GetSeq())),
		t.putFramed(bucketInboxDigests(agentID), number(m.GetSeq()), digest),
		t.forgetKeys(agentID, m.GetSeq()))
}

// forgetKeys removes keys of messages that are too far before one.
func (t *Tx) forgetKeys(agentID string, seq uint64) error {
	var old []uint64
	var digests [][]byte
	t.eachNumber(bucketInboxDigests(agentID), 0, func(n uint64, _, raw []byte) bool {
		if n+keptKeys > seq {
			return false
		}
		key := new(storev1.MessageKey)
		_ = proto.Unmarshal(raw, key) // of a damaged one only the other entry stays
		old, digests = append(old, n), append(digests, []byte(key.GetDigest()))
		return true
	})
	for i, n := range old {
		if err := errors.Join(t.remove(bucketInboxKeys(agentID), digests[i]), t.remove(bucketInboxDigests(agentID), number(n))); err != nil {
			return err
		}
	}
	return nil
}

// MessageWithKey returns the seq of an earlier message with the sender, the stream and the
// key of m; 0 if there was none, or too many followed it. Keys of agbox's own messages have a
// name space for each kind, in which no sender can write.
func (t *Tx) MessageWithKey(agentID string, m *agboxv1.AgentMessage) uint64 {
	if seq, ok := parseNumber(t.get(bucketInboxKeys(agentID), messageDigest(m))); ok || !ownKind(m) {
		return seq
	}
	// An older daemon had one name space: only the message itself tells its kind there.
	seq, ok := parseNumber(t.get(bucketInboxKeys(agentID), keyDigest(m.GetFrom(), m.GetStream(), m.GetKey())))
	if first := t.Message(agentID, seq); !ok || first == nil || first.GetKind() != m.GetKind() {
		return 0
	}
	return seq
}

// Message returns one message of an inbox; nil if it was removed or cannot be read.
func (t *Tx) Message(agentID string, seq uint64) *agboxv1.AgentMessage {
	m := &agboxv1.AgentMessage{}
	if t.message(bucketInbox(agentID), number(seq), m) != nil || m.GetSeq() != seq {
		return nil
	}
	return m
}

// NewestMessage is the highest seq that a message of an inbox ever had; 0 if it never had any.
func (t *Tx) NewestMessage(agentID string) uint64 { return t.highest(bucketInbox(agentID)) }

func ownKind(m *agboxv1.AgentMessage) bool {
	return m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT
}

// messageDigest identifies sender, stream and key, and the kind of agbox's own messages, as text
// of a fixed length.
func messageDigest(m *agboxv1.AgentMessage) []byte {
	if ownKind(m) {
		return keyDigest(m.GetFrom(), m.GetStream(), m.GetKey(), m.GetKind().String())
	}
	return keyDigest(m.GetFrom(), m.GetStream(), m.GetKey())
}

func keyDigest(parts ...string) []byte {
	var text []byte
	for _, part := range parts {
		text = append(binary.BigEndian.AppendUint32(text, uint32(len(part))), part...)
	}
	sum := sha256.Sum256(text)
	return hex.AppendEncode(nil, sum[:])
}

// Messages returns up to limit messages of an inbox after a seq, of at most maxBytes, but
// at least one. A limit below 1 counts as 1, and a maxBytes of 0 means no bound.
func (t *Tx) Messages(agentID string, after uint64, limit, maxBytes int) Page[*agboxv1.AgentMessage] {
	bucket := bucketInbox(agentID)
	return readPage(t, bucket, after, limit, maxBytes, func(_ uint64, key, raw []byte) (*agboxv1.AgentMessage, error) {
		m := &agboxv1.AgentMessage{}
		return m, decode(bucket, key, raw, m)
	})
}

// CountMessages returns how many messages of an inbox come after a seq.
func (t *Tx) CountMessages(agentID string, after uint64) (n int) {
	t.eachNumber(bucketInbox(agentID), after, func(uint64, []byte, []byte) bool { n++; return true })
	return n
}

// ReplaceMessage writes a message again that has a seq.
func (t *Tx) ReplaceMessage(agentID string, m *agboxv1.AgentMessage) error {
	return t.putMessage(bucketInbox(agentID), number(m.GetSeq()), m)
}

// RemoveMessages removes all messages of an inbox up to a seq, and calls removed with each
// that can be read.
func (t *Tx) RemoveMessages(agentID string, upto uint64, removed func(*agboxv1.AgentMessage)) error {
	bucket := bucketInbox(agentID)
	var seqs []uint64 // collected first: a bbolt cursor is invalid after a removal
	t.eachNumber(bucket, 0, func(n uint64, key, raw []byte) bool {
		if n > upto {
			return false
		}
		m := &agboxv1.AgentMessage{}
		if decode(bucket, key, raw, m) == nil {
			removed(m)
		}
		seqs = append(seqs, n)
		return true
	})
	for _, n := range seqs {
		if err := t.remove(bucket, number(n)); err != nil {
			return fmt.Errorf("acknowledge message %d: %w", n, err)
		}
	}
	return nil
}

// RemoveMessage removes one message of an inbox. A missing one is no error.
func (t *Tx) RemoveMessage(agentID string, seq uint64) error {
	return t.remove(bucketInbox(agentID), number(seq))
}

// dropInbox removes the inbox of an agent with its keys.
func (t *Tx) dropInbox(agentID string) error {
	return errors.Join(t.drop(bucketInbox(agentID)), t.drop(bucketInboxKeys(agentID)), t.drop(bucketInboxDigests(agentID)))
}
