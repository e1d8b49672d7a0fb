package store

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestWhatWasWrittenIsReadBack(t *testing.T) {
	s := newStore(t)
	spec := &agboxv1.CreateSpec{Image: "debian", Labels: map[string]string{"a": "b"}}
	request := &agboxv1.CreateExecRequest{SandboxId: "box", ExecId: "x1", Command: []string{"true"}}
	mustUpdate(t, s, func(tx *Tx) error {
		return errors.Join(
			tx.ReserveSandbox("box", testTime), tx.PutSandboxConfig("box", spec),
			tx.ReserveExec("x1", testTime), tx.PutExecConfig("box", "x1", request),
			tx.MarkDeleted("box", testTime), tx.MarkDeleted("box", testTime.Add(time.Hour)))
	})
	mustView(t, s, func(tx *Tx) {
		if got, err := tx.SandboxConfig("box"); err != nil || !proto.Equal(got, spec) {
			t.Errorf("spec %v, %v", got, err)
		}
		if got, err := tx.ExecConfig("box", "x1"); err != nil || !proto.Equal(got, request) {
			t.Errorf("request %v, %v", got, err)
		}
		for what, read := range map[string]func(string) (time.Time, bool){
			"box": tx.SandboxReserved, "x1": tx.ExecReserved,
		} {
			if at, ok := read(what); !ok || !at.Equal(testTime) {
				t.Errorf("%s reserved at %v, %v", what, at, ok)
			}
		}
		if at, ok := tx.DeletedAt("box"); !ok || !at.Equal(testTime) {
			t.Errorf("deleted at %v, %v: the first time stays", at, ok)
		}
	})
}

func TestWhatIsAbsentIsNotFound(t *testing.T) {
	s := newStore(t)
	mustView(t, s, func(tx *Tx) {
		_, err1 := tx.SandboxConfig("box")
		_, err2 := tx.ExecConfig("box", "x")
		_, err3 := tx.ExecLastEvent("box", "x")
		_, err4 := tx.Event("box", 1)
		for i, err := range []error{err1, err2, err3, err4} {
			if !errdefs.IsNotFound(err) {
				t.Errorf("error %d: %v", i, err)
			}
		}
		_, ok1 := tx.SandboxReserved("box")
		_, ok2 := tx.DeletedAt("box")
		_, ok3 := tx.ExecSandbox("x")
		if ok1 || ok2 || ok3 || tx.LastSequence("box")+tx.FirstSequence("box")+tx.LastPosition()+tx.FirstPosition() != 0 {
			t.Error("something is there")
		}
		if page := tx.Events("box", 7, 10, 0); len(page.Records) != 0 || page.Next != 7 || page.More {
			t.Errorf("page %+v", page)
		}
	})
}

func TestIDsThatCouldConfuseBucketsAreRefused(t *testing.T) {
	s := newStore(t)
	for _, id := range []string{"", "a:b", "../x", "a\x00b", "ä"} {
		for name, fn := range map[string]func(tx *Tx) error{
			"ReserveSandbox":   func(tx *Tx) error { return tx.ReserveSandbox(id, testTime) },
			"ReserveExec":      func(tx *Tx) error { return tx.ReserveExec(id, testTime) },
			"PutSandboxConfig": func(tx *Tx) error { return tx.PutSandboxConfig(id, &agboxv1.CreateSpec{}) },
			"PutExecConfig":    func(tx *Tx) error { return tx.PutExecConfig("box", id, &agboxv1.CreateExecRequest{}) },
			"MarkDeleted":      func(tx *Tx) error { return tx.MarkDeleted(id, testTime) },
			"AppendEvent":      appendEvents(event(id, agboxv1.EventType_SANDBOX_READY)),
		} {
			if err := s.Update(t.Context(), fn); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s(%q): %v", name, id, err)
			}
		}
	}
}

func TestAReadTransactionRefusesToWrite(t *testing.T) {
	s := newStore(t)
	mustUpdate(t, s, reserve("box"))
	mustView(t, s, func(tx *Tx) {
		for i, err := range []error{
			tx.ReserveSandbox("other", testTime), tx.DropSandbox("box"), tx.MarkDeleted("box", testTime),
			appendEvents(event("box", agboxv1.EventType_SANDBOX_READY))(tx),
		} {
			if i != 1 && err == nil {
				t.Errorf("write %d was taken", i)
			}
		}
	})
	if !isReserved(t, s, "box") || isReserved(t, s, "other") {
		t.Error("a read transaction has written")
	}
}

func TestExecsAreListedBySandboxAndPagedByKey(t *testing.T) {
	s := newStore(t)
	mustUpdate(t, s, func(tx *Tx) error {
		for i := range 5 {
			for _, box := range []string{"b", "a"} {
				if err := tx.PutExecConfig(box, numbered(box, i), &agboxv1.CreateExecRequest{}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	mustView(t, s, func(tx *Tx) {
		var paged []string
		for after := ""; ; {
			ids := tx.ExecIDs("b", after, 2)
			if len(ids) == 0 {
				break
			}
			paged = append(paged, ids...)
			after = ids[len(ids)-1]
		}
		if !slices.Equal(paged, []string{"b00000", "b00001", "b00002", "b00003", "b00004"}) {
			t.Errorf("paged %v", paged)
		}
		var all []string
		err := tx.ForEachExecID(func(box, id string) error {
			if owner, ok := tx.ExecSandbox(id); !ok || owner != box {
				t.Errorf("%s belongs to %q, want %q", id, owner, box)
			}
			all = append(all, id)
			return nil
		})
		if err != nil || len(all) != 10 || all[0] != "a00000" {
			t.Errorf("all %v, %v", all, err)
		}
		if err := tx.ForEachExecID(func(string, string) error { return errRefused }); !errors.Is(err, errRefused) {
			t.Errorf("the function's error became %v", err)
		}
	})
}

func TestKeptExecsAreFoundByPrefix(t *testing.T) {
	s := newStore(t)
	mustUpdate(t, s, func(tx *Tx) error {
		var err error
		for _, x := range []KeptExec{{"one", "abc"}, {"two", "ab"}, {"two", "abd"}, {"two", "b"}} {
			err = errors.Join(err, tx.ReserveExec(x.ExecID, testTime), tx.PutExecConfig(x.SandboxID, x.ExecID, &agboxv1.CreateExecRequest{}))
		}
		return errors.Join(err, tx.ForgetExecs("two", "abd"))
	})
	mustView(t, s, func(tx *Tx) {
		for prefix, want := range map[string][]KeptExec{
			"ab": {{"two", "ab"}, {"one", "abc"}}, "abc": {{"one", "abc"}}, "abd": nil, "b": {{"two", "b"}}, "c": nil,
			"": {{"two", "ab"}, {"one", "abc"}},
		} {
			if got := tx.ExecsWithPrefix(prefix, 2, func(string) bool { return false }); !slices.Equal(got, want) {
				t.Errorf("%q finds %v, want %v", prefix, got, want)
			}
		}
		want := []KeptExec{{"two", "ab"}}
		if got := tx.ExecsWithPrefix("ab", 1, func(sandboxID string) bool { return sandboxID == "one" }); !slices.Equal(got, want) {
			t.Errorf("without those of one sandbox it finds %v, want %v", got, want)
		}
		if got := tx.ExecsWithPrefix("ab", 2, func(sandboxID string) bool { return sandboxID == "two" }); !slices.Equal(got, []KeptExec{{"one", "abc"}}) {
			t.Errorf("without those of the other it finds %v", got)
		}
	})
}

// TestTheFileHasThePublishedBucketsKeysAndValues reads the file with bbolt and
// compares it with the published table.
func TestTheFileHasThePublishedBucketsKeysAndValues(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	ev := execEvent("box", "x1", agboxv1.EventType_EXEC_STARTED)
	spec := &agboxv1.CreateSpec{Image: "debian"}
	request := &agboxv1.CreateExecRequest{Command: []string{"true"}}
	mustUpdate(t, s, func(tx *Tx) error {
		return errors.Join(
			tx.ReserveSandbox("box", testTime), tx.ReserveExec("x1", testTime), appendEvents(ev)(tx),
			tx.MarkDeleted("box", testTime), tx.PutSandboxConfig("box", spec), tx.PutExecConfig("box", "x1", request))
	})
	closeStore(t, s)
	db, err := bolt.Open(o.Path, 0, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	bytesOf := func(m proto.Message) string {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	nanos := string(binary.BigEndian.AppendUint64(nil, uint64(testTime.UnixNano())))
	want := map[string][2]string{
		"sandbox-ids":         {"box", nanos},
		"exec-ids":            {"x1", nanos},
		"events:box":          {"\x00\x00\x00\x00\x00\x00\x00\x01", bytesOf(ev)},
		"sandbox-deleted-at":  {"box", nanos},
		"sandbox-config":      {"box", bytesOf(spec)},
		"exec-config:box":     {"x1", bytesOf(request)},
		"exec-last-event:box": {"x1", "\x00\x00\x00\x00\x00\x00\x00\x01"},
		"event-order":         {"\x00\x00\x00\x00\x00\x00\x00\x01", "\x0a\x03box\x10\x01"},
	}
	err = db.View(func(b *bolt.Tx) error {
		seen := 0
		for bucket, record := range want {
			k, v := b.Bucket([]byte(bucket)).Cursor().First()
			if string(k) != record[0] || string(v) != record[1] {
				t.Errorf("%s has %x -> %x, want %x -> %x", bucket, k, v, record[0], record[1])
			}
		}
		err := b.ForEach(func([]byte, *bolt.Bucket) error { seen++; return nil })
		if seen != len(want)+1 {
			t.Errorf("%d buckets, want %d and meta", seen, len(want))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
