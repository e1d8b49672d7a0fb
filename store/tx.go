package store

import (
	"bytes"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/containerd/errdefs"

	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Tx is one transaction: of View, for reading, or of Update, for both. It is
// valid until the function that got it returns. Nothing that its methods return points
// into the database.
type Tx struct {
	bolt *bolt.Tx
	// touched counts what would have to be taken back if the function failed.
	touched  int
	onCommit []func()
	values   map[any]any
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// OnCommit has f run once this transaction is on the disk: in the writer's
// goroutine, in the order of registration over all updates of the batch, and
// before any of these updates returns. f must be short, and call neither
// Update nor View. In a read transaction f never runs.
func (t *Tx) OnCommit(f func()) {
	t.touched++
	t.onCommit = append(t.onCommit, f)
}

// Value returns what SetValue has put under key in this transaction, by this function or by another of
// the same batch; nil if nothing. It starts empty whenever the batch is run again.
func (t *Tx) Value(key any) any {
	v := t.values[key]
	if v != nil {
		t.touched++ // it may be a pointer, and be written through
	}
	return v
}

// SetValue keeps v under key, which should be of a type of the caller's own, until the transaction ends.
func (t *Tx) SetValue(key, v any) {
	t.touched++
	if t.values == nil {
		t.values = make(map[any]any)
	}
	t.values[key] = v
}

// Meta reads the description of the database.
func (t *Tx) Meta() (*storev1.Meta, error) { return readMeta(t.bolt) }

// get returns the raw value, valid only inside the transaction; nil if there is none.
func (t *Tx) get(bucket, key []byte) []byte {
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return nil
	}
	return b.Get(key)
}

// write returns the bucket, made if it is absent, for writing to it.
func (t *Tx) write(bucket []byte) (*bolt.Bucket, error) {
	t.touched++
	b, err := t.bolt.CreateBucketIfNotExists(bucket)
	if err == nil && growsAtTheEnd(bucket) {
		b.FillPercent = appendFill
	}
	return b, err
}

// appendFill is how full a page is left when it is split. bbolt leaves half free
// for keys in between, of which a bucket that only grows at its end gets none.
const appendFill = 0.95

func growsAtTheEnd(bucket []byte) bool {
	return bytes.Equal(bucket, bucketEventOrder) || bytes.HasPrefix(bucket, []byte(prefixEvents))
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

// message decodes a record into m. It returns errdefs.ErrNotFound or a *RecordError.
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

// remove deletes a key; an absent one is fine.
func (t *Tx) remove(bucket, key []byte) error {
	b := t.bolt.Bucket(bucket)
	if b == nil {
		return nil
	}
	t.touched++
	return b.Delete(key)
}

// drop deletes a bucket; an absent one is fine.
func (t *Tx) drop(bucket []byte) error {
	if t.bolt.Bucket(bucket) == nil {
		return nil
	}
	t.touched++
	return t.bolt.DeleteBucket(bucket)
}

// keys returns up to limit keys after the given one in the order of bytes.
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
