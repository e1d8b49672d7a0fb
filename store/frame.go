package store

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// framed returns the message for a value of a bucket that is a text or bytes; nil for values of
// other buckets.
func framed(bucket, value []byte) proto.Message {
	kind, _, _ := strings.Cut(string(bucket), ":")
	switch kind {
	case string(bucketSandboxKeys), string(bucketExecKeys):
		return &storev1.KeyOwner{Id: strings.ToValidUTF8(string(value), "")} // a damaged one is nobody's
	case string(bucketSandboxSecrets), strings.TrimSuffix(prefixExecSecrets, ":"):
		return &storev1.Sealed{Box: value}
	case string(bucketAgentWork):
		return &storev1.AgentWork{Content: value}
	case strings.TrimSuffix(prefixInboxDigests, ":"):
		return &storev1.MessageKey{Digest: string(value)}
	}
	return nil
}

// putFramed stores a text or bytes as the message that the bucket has.
func (t *Tx) putFramed(bucket, key, value []byte) error {
	if t.unframed {
		return t.put(bucket, key, value)
	}
	return t.putMessage(bucket, key, framed(bucket, value))
}

// frameValues is the migration to schema 3. Up to schema 2, what framed is about was stored as
// it is. The digests of messages were bytes, also as keys, and are text.
func frameValues(t *Tx) error {
	var names [][]byte
	err := t.bolt.ForEach(func(name []byte, _ *bolt.Bucket) error {
		if framed(name, nil) != nil || bytes.HasPrefix(name, []byte(prefixInboxKeys)) {
			names = append(names, bytes.Clone(name))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		for _, key := range t.keys(name, "", math.MaxInt) {
			if err := t.frameValue(name, []byte(key)); err != nil {
				return fmt.Errorf("%s in %s: %w", keyText([]byte(key)), name, err)
			}
		}
	}
	return nil
}

func (t *Tx) frameValue(bucket, key []byte) error {
	value := bytes.Clone(t.get(bucket, key)) // the memory of bbolt changes with a write
	switch {
	case bytes.HasPrefix(bucket, []byte(prefixInboxKeys)):
		if err := t.remove(bucket, key); err != nil {
			return err
		}
		return t.put(bucket, hex.AppendEncode(nil, key), value)
	case bytes.HasPrefix(bucket, []byte(prefixInboxDigests)):
		value = hex.AppendEncode(nil, value)
	}
	return t.putMessage(bucket, key, framed(bucket, value))
}
