package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// unframedFixture has schema 2 and values that are text and bytes; see makeUnframedFixture.
const unframedFixture = "testdata/schema2.db"

// unframedDigest is the digest of a message as schema 2 has it, also as a key.
func unframedDigest(m *agboxv1.AgentMessage) []byte {
	raw, err := hex.DecodeString(string(messageDigest(m)))
	if err != nil {
		panic(err)
	}
	return raw
}

func keyedMessage(n int) *agboxv1.AgentMessage {
	return &agboxv1.AgentMessage{From: "b", Key: numbered("k", n), Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, Seq: uint64(n)}
}

// makeUnframedFixture writes a database as of schema 2: a sandbox and an exec with request keys
// and secrets, and an agent with work and messages.
func makeUnframedFixture(t *testing.T) {
	_ = os.Remove(unframedFixture)
	db, err := bolt.Open(unframedFixture, 0o644, &bolt.Options{PageSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(b *bolt.Tx) error {
		tx := &Tx{bolt: b}
		for n := 1; n <= 300; n++ { // more than a page
			m := keyedMessage(n)
			err := errors.Join(
				tx.putMessage(bucketInbox("g"), number(m.GetSeq()), m),
				tx.put(bucketInboxKeys("g"), unframedDigest(m), number(m.GetSeq())),
				tx.put(bucketInboxDigests("g"), number(m.GetSeq()), unframedDigest(m)),
				tx.put(bucketExecKeys, []byte(numbered("key-", n)), []byte(numbered("x", n))))
			if err != nil {
				return err
			}
		}
		meta := &storev1.Meta{SchemaVersion: 2, InstallId: "unframed", CreatedAt: timestamppb.New(testTime)}
		return errors.Join(
			b.Bucket(bucketInbox("g")).SetSequence(300),
			tx.ReserveSandbox("a", testTime),
			tx.putMessage(bucketSandboxConfig, []byte("a"), &agboxv1.CreateSpec{Image: "image"}),
			tx.put(bucketSandboxKeys, []byte("key"), []byte("a")),
			tx.put(bucketSandboxKeys, []byte("damaged"), []byte("\xff\xfe")),
			tx.putMessage(bucketSandboxRequests, []byte("a"), &storev1.Request{Key: "key", Digest: []byte("digest")}),
			tx.put(bucketSandboxSecrets, []byte("a"), []byte("a box")),
			tx.put(bucketExecSecrets("a"), []byte("x1"), []byte("another box")),
			tx.put(bucketAgentWork, []byte("g"), []byte("do \xff it")),
			putMeta(b, meta))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestTextsAndBytesOfAnOldDatabaseBecomeMessages(t *testing.T) {
	if *remake {
		makeUnframedFixture(t)
	}
	o := testOptions(t.TempDir())
	writeFile(t, o.Path, readFile(t, unframedFixture))
	for range 2 { // it is done once
		s := mustOpen(t, o)
		mustView(t, s, func(tx *Tx) {
			if id := tx.SandboxOfKey("key"); id != "a" {
				t.Errorf("the key has created %q", id)
			}
			if id := tx.SandboxOfKey("damaged"); id != "" {
				t.Errorf("a damaged record says that the key has created %q", id)
			}
			if id := tx.ExecOfKey(numbered("key-", 7)); id != numbered("x", 7) {
				t.Errorf("the key has created %q", id)
			}
			work, err := tx.AgentWork("g")
			if err != nil || string(work) != "do \xff it" {
				t.Errorf("the work is %q, %v", work, err)
			}
			for n := 1; n <= 300; n++ {
				if seq := tx.MessageWithKey("g", keyedMessage(n)); seq != uint64(n) {
					t.Fatalf("message %d is found as %d", n, seq)
				}
			}
			for bucket, want := range map[string]string{string(bucketSandboxSecrets) + "/a": "a box", string(bucketExecSecrets("a")) + "/x1": "another box"} {
				name, key, _ := strings.Cut(bucket, "/")
				sealed := new(storev1.Sealed)
				if err := tx.message([]byte(name), []byte(key), sealed); err != nil || string(sealed.GetBox()) != want {
					t.Errorf("%s has %q, %v", bucket, sealed.GetBox(), err)
				}
			}
			wantDeclared(t, tx.bolt)
		})
		mustUpdate(t, s, func(tx *Tx) error { return tx.PutMessage("g", keyedMessage(0)) })
		closeStore(t, s)
	}
}

// wantDeclared checks the keys and values of all buckets, and returns the kinds of buckets that
// have any.
func wantDeclared(t *testing.T, b *bolt.Tx) (kinds []string) {
	t.Helper()
	err := b.ForEach(func(name []byte, bucket *bolt.Bucket) error {
		kind, _, many := strings.Cut(string(name), ":")
		if many {
			kind += ":"
		}
		message, known := valuesOf[kind]
		if !known {
			return fmt.Errorf("bucket %s is not declared", name)
		}
		return bucket.ForEach(func(k, v []byte) error {
			kinds = append(kinds, kind)
			if _, numeric := parseNumber(k); !numeric && !utf8.Valid(k) {
				return fmt.Errorf("%s has the key %x, which is neither a number nor text", name, k)
			}
			if err := wantValue(message, v); err != nil {
				return fmt.Errorf("%s of %s: %w", keyText(k), name, err)
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// wantValue is stricter than a check of a database: bytes of another kind may be taken for a
// message with fields that nobody knows.
func wantValue(message proto.Message, v []byte) error {
	if message == nil {
		return isNumber(v)
	}
	m := message.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(v, m); err != nil {
		return err
	}
	again, err := deterministic.Marshal(m)
	switch {
	case err != nil:
		return err
	case len(m.ProtoReflect().GetUnknown()) > 0 || !bytes.Equal(again, v):
		return fmt.Errorf("%x is no %s", v, m.ProtoReflect().Descriptor().FullName())
	}
	return nil
}

// TestEveryValueIsAsItsBucketDeclares uses all that a transaction can write.
func TestEveryValueIsAsItsBucketDeclares(t *testing.T) {
	s := mustOpen(t, testOptions(t.TempDir()))
	if err := s.Keys().Make("a"); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, func(tx *Tx) error {
		errs := []error{
			tx.ReserveSandbox("a", testTime), tx.ReserveSandbox("b", testTime), tx.PutSandboxConfig("a", secretSpec()),
			tx.PutSandboxKey("a", "key", []byte("digest")), tx.MarkDeleted("b", testTime),
			tx.ReserveExec("x", testTime), tx.PutExecConfig("a", "x", secretExec("x")), tx.PutExecKey("x", "another key"),
			tx.ReserveAgent("g", testTime), tx.PutAgentConfig("g", &agboxv1.AgentSpec{Command: []string{"true"}}), tx.PutAgentWork("g", []byte("do it")),
			tx.PutMessage("g", keyedMessage(0)), tx.PutPool("stack", &storev1.Pool{Id: "a", Size: 2}, secretSpec()), tx.UpdatePool("stack", &storev1.Pool{Id: "a", Size: 2, Hits: 1}),
		}
		for _, typ := range []agboxv1.EventType{agboxv1.EventType_EXEC_STARTED, agboxv1.EventType_EXEC_FINISHED} {
			err := tx.AppendEvent(execEvent("a", "x", typ))
			errs = append(errs, err)
		}
		for range 3 {
			errs = append(errs, tx.AppendAgentEvent(&agboxv1.AgentEvent{AgentId: "g", Type: agboxv1.AgentEventType_AGENT_PROGRESS, OccurredAt: timestamppb.New(testTime)}))
		}
		return errors.Join(errs...)
	})
	mustUpdate(t, s, func(tx *Tx) error { return tx.RemoveEvents("a", 1) })
	mustView(t, s, func(tx *Tx) {
		used := wantDeclared(t, tx.bolt)
		for _, kind := range slices.Sorted(maps.Keys(valuesOf)) {
			if !slices.Contains(used, kind) {
				t.Errorf("nothing was written to %s", kind)
			}
		}
	})
}
