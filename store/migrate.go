package store

import (
	"errors"
	"fmt"
	"math"
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
		if _, err := putOrder(order, ev.sandbox, ev.sequence); err != nil {
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

// hideSecrets is the migration to schema 2. Deleted sandboxes lose their secrets. Free pages
// can have those of sandboxes whose records are gone, too.
func hideSecrets(t *Tx) error {
	t.rewrite, t.unframed = true, true
	defer func() { t.unframed = false }()
	for _, id := range t.SandboxIDs() {
		spec, err := t.SandboxConfig(id)
		if err != nil {
			continue // an unreadable record stays as it is
		}
		_, hidden := secrets.HideSpec(spec)
		if err := t.hideExecs(id); err != nil {
			return err
		}
		if hidden == nil {
			continue
		}
		if err := t.hideSandbox(id, spec); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tx) hideSandbox(id string, spec *agboxv1.CreateSpec) error {
	request := t.sandboxRequest(id)
	if _, deleted := t.DeletedAt(id); deleted {
		shown, _ := secrets.HideSpec(spec)
		if request != nil {
			request.Keyed, request.Digest = true, nil
		}
		return errors.Join(t.putMessage(bucketSandboxConfig, []byte(id), shown), t.putRequest(id, request))
	}
	if err := t.secretKeys.Make(id); err != nil {
		return err
	}
	if err := t.PutSandboxConfig(id, spec); err != nil || request == nil {
		return err
	}
	return t.PutSandboxKey(id, request.GetKey(), request.GetDigest())
}

// hideExecs is the part of hideSecrets for the execs of a sandbox.
func (t *Tx) hideExecs(sandboxID string) error {
	_, deleted := t.DeletedAt(sandboxID)
	for _, id := range t.ExecIDs(sandboxID, "", math.MaxInt) {
		request, err := t.ExecConfig(sandboxID, id)
		if err != nil {
			continue
		}
		shown, hidden := secrets.HideExec(request)
		if hidden == nil {
			continue
		}
		if deleted {
			err = t.putMessage(bucketExecConfig(sandboxID), []byte(id), shown)
		} else if err = t.secretKeys.Make(sandboxID); err == nil {
			err = t.PutExecConfig(sandboxID, id, request)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
