package store

import (
	"fmt"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// migration upgrades a database from schema to-1 to schema to.
type migration struct {
	to    uint32
	name  string
	apply func(t *Tx) error
}

// migrations are in order, without a gap, up to SchemaVersion. For each, testdata
// has a database with the schema before it. Never change a released migration.
var migrations = []migration{
	{1, "index the events of a database with only the published buckets", indexSeedDatabase},
	{2, "encrypt the values of secret variables", hideSecrets},
	{3, "make messages of values that were text or bytes", frameValues},
}

// migrate runs the missing migrations in one transaction and returns the meta
// record. A database without a meta record has schema 0.
func migrate(db *bolt.DB, keys secrets.Keys, list []migration, now time.Time) (meta *storev1.Meta, err error) {
	err = db.View(func(b *bolt.Tx) (err error) {
		meta, err = readMeta(b)
		return err
	})
	if err != nil || meta.GetSchemaVersion() == list[len(list)-1].to {
		return meta, err
	}
	err = db.Update(func(b *bolt.Tx) error {
		if meta == nil {
			meta = &storev1.Meta{InstallId: ids.New(), CreatedAt: timestamppb.New(now)}
		}
		t := &Tx{bolt: b, secretKeys: keys}
		for _, m := range list {
			if m.to <= meta.GetSchemaVersion() {
				continue
			}
			if err := m.apply(t); err != nil {
				return fmt.Errorf("migrate to schema %d (%s): %w", m.to, m.name, err)
			}
			meta.SchemaVersion = m.to
		}
		meta.Rewrite = meta.GetRewrite() || t.rewrite
		return putMeta(b, meta)
	})
	if err != nil {
		return nil, err
	}
	return meta, nil
}

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

// isSeedDatabase returns an error unless the database has only buckets of the
// published contract. Such a database has no meta record, so without this test
// another program's bbolt file could be taken for one.
func isSeedDatabase(b *bolt.Tx) error {
	buckets := 0
	err := b.ForEach(func(name []byte, _ *bolt.Bucket) error {
		buckets++
		if !inContract(string(name)) {
			return fmt.Errorf("it has no meta record and a bucket %q: it is not a database of agbox", name)
		}
		return nil
	})
	if err == nil && buckets == 0 {
		err = fmt.Errorf("it has no buckets")
	}
	return err
}

// seedEvent has the fields of an event that its index entries need.
type seedEvent struct {
	at       time.Time
	sandbox  string
	sequence uint64
	exec     string
}

// indexSeedDatabase computes event-order and exec-last-event from the events.
func indexSeedDatabase(t *Tx) error {
	b := t.bolt
	var all []seedEvent
	err := b.ForEach(func(name []byte, bucket *bolt.Bucket) error {
		sandbox, ok := strings.CutPrefix(string(name), prefixEvents)
		if ok {
			all = append(all, seedEvents(sandbox, bucket)...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, func(x, y seedEvent) int { return x.at.Compare(y.at) })
	order, err := b.CreateBucketIfNotExists(bucketEventOrder)
	if err != nil {
		return err
	}
	for _, ev := range all {
		if err := putOrder(order, ev.sandbox, ev.sequence); err != nil {
			return err
		}
		if ev.exec == "" {
			continue
		}
		last, err := b.CreateBucketIfNotExists(bucketExecLastEvent(ev.sandbox))
		if err != nil {
			return err
		}
		if err := last.Put([]byte(ev.exec), number(ev.sequence)); err != nil {
			return err
		}
	}
	return nil
}

// seedEvents lists the events of one sandbox. Its sequence takes precedence over
// its timestamps: an event never gets a time before that of its predecessor. An
// unreadable event gets the time of its predecessor.
func seedEvents(sandbox string, bucket *bolt.Bucket) []seedEvent {
	var list []seedEvent
	var at time.Time
	_ = bucket.ForEach(func(k, v []byte) error { // the function returns no error
		sequence, ok := parseNumber(k)
		if !ok {
			return nil
		}
		ev := &agboxv1.SandboxEvent{}
		if proto.Unmarshal(v, ev) == nil && ev.GetOccurredAt() != nil {
			at = later(at, ev.GetOccurredAt().AsTime())
		}
		list = append(list, seedEvent{at: at, sandbox: sandbox, sequence: sequence, exec: ev.GetExec().GetExecId()})
		return nil
	})
	return list
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
