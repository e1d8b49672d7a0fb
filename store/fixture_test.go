package store

import (
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

var remake = flag.Bool("remake-fixtures", false, "write the old databases in testdata again")

// TestTheSeedFixtureHasOnlyThePublishedBuckets first writes the fixture again if
// -remake-fixtures is set.
func TestTheSeedFixtureHasOnlyThePublishedBuckets(t *testing.T) {
	if *remake {
		makeSeedFixture(t)
	}
	db, err := bolt.Open(seedFixture, 0, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.View(isSeedDatabase)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// makeSeedFixture writes the database of a daemon that implements only the
// published contract: two sandboxes, one of them deleted, one exec, and a clock
// that went back.
func makeSeedFixture(t *testing.T) {
	_ = os.Remove(seedFixture)
	db, err := bolt.Open(seedFixture, 0o644, &bolt.Options{PageSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	seed := func(b *bolt.Tx, bucket, key, value []byte) error {
		bkt, err := b.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		return bkt.Put(key, value)
	}
	record := func(b *bolt.Tx, ev *agboxv1.SandboxEvent, sequence uint64, second int) error {
		ev.Sequence, ev.EventId = sequence, ev.SandboxId+"/"+string('0'+rune(sequence))
		ev.OccurredAt = timestamppb.New(testTime.Add(time.Duration(second) * time.Second))
		raw, err := proto.Marshal(ev)
		return errors.Join(err, seed(b, bucketEvents(ev.SandboxId), number(sequence), raw))
	}
	spec, _ := proto.Marshal(&agboxv1.CreateSpec{Image: "image"})
	request, _ := proto.Marshal(&agboxv1.CreateExecRequest{SandboxId: "alpha", ExecId: "x1", Command: []string{"true"}})
	err = db.Update(func(b *bolt.Tx) error {
		return errors.Join(
			seed(b, bucketSandboxIDs, []byte("alpha"), instant(testTime)),
			seed(b, bucketSandboxIDs, []byte("beta"), instant(testTime)),
			seed(b, bucketExecIDs, []byte("x1"), instant(testTime)),
			seed(b, bucketSandboxConfig, []byte("alpha"), spec),
			seed(b, bucketSandboxConfig, []byte("beta"), spec),
			seed(b, bucketSandboxDeleted, []byte("beta"), instant(testTime)),
			seed(b, bucketExecConfig("alpha"), []byte("x1"), request),
			record(b, event("alpha", agboxv1.EventType_SANDBOX_ACCEPTED), 1, 1),
			record(b, event("beta", agboxv1.EventType_SANDBOX_ACCEPTED), 1, 2),
			record(b, event("beta", agboxv1.EventType_SANDBOX_READY), 2, 3),
			record(b, execEvent("alpha", "x1", agboxv1.EventType_EXEC_STARTED), 2, 9),
			record(b, execEvent("alpha", "x1", agboxv1.EventType_EXEC_FINISHED), 3, 0),
		)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}
