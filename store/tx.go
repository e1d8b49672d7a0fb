package store

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Tx is one transaction: read-only in View, read-write in Update. It is valid
// until the function that received it returns. Values returned by its exported
// methods stay valid after that.
type Tx struct {
	bolt       *bolt.Tx
	secretKeys secrets.Keys
	// rewrite: after this migration, free pages may have secrets in plain text.
	rewrite bool
	// unframed: the migration to schema 2 stores texts and bytes as that schema has them.
	unframed bool
	// changes counts the changes that a rollback would have to undo.
	changes  int
	onCommit []func()
	values   map[any]any
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// OnCommit registers f to run when this transaction is on the disk. The writer's
// goroutine calls the functions of all updates in the batch in the order of
// registration, before any of these updates returns. f must be short and must
// not call Update or View. In a read transaction f never runs.
func (t *Tx) OnCommit(f func()) {
	t.changes++
	t.onCommit = append(t.onCommit, f)
}

// Value returns the value that SetValue stored under key in this transaction, in
// this update or in an earlier one of the same batch; nil if there is none. All
// values are discarded when the batch runs again.
func (t *Tx) Value(key any) any {
	v := t.values[key]
	if v != nil {
		t.changes++ // the caller may write through a pointer
	}
	return v
}

// SetValue stores v under key until the transaction ends. The key should have a
// type that the caller defines, to avoid collisions.
func (t *Tx) SetValue(key, v any) {
	t.changes++
	if t.values == nil {
		t.values = make(map[any]any)
	}
	t.values[key] = v
}

// Meta reads the description of the database.
func (t *Tx) Meta() (*storev1.Meta, error) { return readMeta(t.bolt) }

// readMeta returns nil, and no error, for a database without a meta bucket.
func readMeta(b *bolt.Tx) (*storev1.Meta, error) {
	bucket := b.Bucket(bucketMeta)
	if bucket == nil {
		return nil, nil
	}
	raw := bucket.Get(keyMeta)
	meta := &storev1.Meta{}
	if err := proto.Unmarshal(raw, meta); err != nil {
		return nil, &RecordError{Bucket: string(bucketMeta), Key: string(keyMeta), Err: err}
	}
	if !ids.Valid(meta.GetInstallId()) || meta.GetSchemaVersion() == 0 {
		return nil, &RecordError{Bucket: string(bucketMeta), Key: string(keyMeta), Err: fmt.Errorf("it says %v", meta)}
	}
	return meta, nil
}

func putMeta(b *bolt.Tx, meta *storev1.Meta) error {
	bucket, err := b.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return err
	}
	raw, err := proto.Marshal(meta)
	if err != nil {
		return err
	}
	return bucket.Put(keyMeta, raw)
}

// get returns the raw value, which is valid only inside the transaction; nil if
// there is none.
func (t *Tx) get(bucket, key []byte) []byte {
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return nil
	}
	return b.Get(key)
}

// write returns the bucket for writing and creates it if needed.
func (t *Tx) write(bucket []byte) (*bolt.Bucket, error) {
	t.changes++
	b, err := t.bolt.CreateBucketIfNotExists(bucket)
	if err == nil && growsAtTheEnd(bucket) {
		b.FillPercent = appendFill
	}
	return b, err
}

// appendFill is the fill fraction of a page after a split. By default bbolt
// leaves half of it free for keys in between; an append-only bucket gets none.
const appendFill = 0.95

func growsAtTheEnd(bucket []byte) bool {
	return bytes.Equal(bucket, bucketEventOrder) || bytes.HasPrefix(bucket, []byte(prefixEvents)) ||
		bytes.Equal(bucket, bucketAgentOrder) || bytes.HasPrefix(bucket, []byte(prefixAgentEvents)) ||
		bytes.HasPrefix(bucket, []byte(prefixInbox)) || bytes.HasPrefix(bucket, []byte(prefixInboxDigests))
}

func (t *Tx) put(bucket, key, value []byte) error {
	b, err := t.write(bucket)
	if err != nil {
		return fmt.Errorf("bucket %s: %w", bucket, err)
	}
	if err := b.Put(key, value); err != nil {
		return fmt.Errorf("put %s in %s: %w", keyText(key), bucket, err)
	}
	return nil
}

func (t *Tx) putMessage(bucket, key []byte, m proto.Message) error {
	raw, err := deterministic.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s for %s: %w", keyText(key), bucket, err)
	}
	return t.put(bucket, key, raw)
}

// message decodes a record into m. Its errors are errdefs.ErrNotFound and
// *RecordError.
func (t *Tx) message(bucket, key []byte, m proto.Message) error {
	raw := t.get(bucket, key)
	if raw == nil {
		return fmt.Errorf("no %s in %s: %w", keyText(key), bucket, errdefs.ErrNotFound)
	}
	return decode(bucket, key, raw, m)
}

func decode(bucket, key, raw []byte, m proto.Message) error {
	if err := proto.Unmarshal(raw, m); err != nil {
		return &RecordError{Bucket: string(bucket), Key: keyText(key), Err: err}
	}
	return nil
}

// remove deletes a key. A missing key is not an error.
func (t *Tx) remove(bucket, key []byte) error {
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return nil
	}
	t.changes++
	return b.Delete(key)
}

// drop deletes a bucket. A missing bucket is not an error.
func (t *Tx) drop(bucket []byte) error {
	if t.bolt.Bucket(bucket) == nil {
		return nil
	}
	t.changes++
	return t.bolt.DeleteBucket(bucket)
}

// keys returns up to limit keys after the given one, in byte order.
func (t *Tx) keys(bucket []byte, after string, limit int) []string {
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return nil
	}
	var list []string
	c := b.Cursor()
	k, _ := c.Seek([]byte(after))
	if after != "" && string(k) == after {
		k, _ = c.Next()
	}
	for ; k != nil && len(list) < limit; k, _ = c.Next() {
		list = append(list, string(k))
	}
	return list
}

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
