package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

func childCommand(role string) func(string) *exec.Cmd {
	return func(path string) *exec.Cmd { return child(role, path) }
}

func countCalls(command func(string) *exec.Cmd, n *int) func(string) *exec.Cmd {
	return func(path string) *exec.Cmd { *n++; return command(path) }
}

func otherProgram(string) *exec.Cmd { return exec.Command("true") }

func noProgram(string) *exec.Cmd { return exec.Command("/nonexistent/program") }

// crashingCheck is a check that the damaged file crashes.
func crashingCheck([]string) int {
	fmt.Println(checkBanner)
	panic("page fault")
}

func hangingCheck([]string) int {
	fmt.Println(checkBanner)
	for {
		_ = unix.Pause() // any signal interrupts it, including those of the Go runtime
	}
}

func TestASecondOpenIsRefusedWhileTheFirstLives(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	mustUpdate(t, s, reserve("a"))
	_, err := Open(t.Context(), o)
	wantFault(t, err, ErrLocked)
	mustUpdate(t, s, reserve("b"))
	closeStore(t, s)
	mustOpen(t, o)
}

func TestANewerSchemaIsRefusedWithoutAWrite(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	mustUpdate(t, s, func(tx *Tx) error {
		return tx.putMessage(bucketMeta, keyMeta, &storev1.Meta{SchemaVersion: SchemaVersion + 1, InstallId: s.InstallID()})
	})
	closeStore(t, s)
	for _, clean := range []bool{true, false} {
		if !clean {
			if err := os.Remove(markerPath(o.Path)); err != nil {
				t.Fatal(err)
			}
		}
		before, info := readFile(t, o.Path), stat(t, o.Path)
		_, err := Open(t.Context(), o)
		wantFault(t, err, ErrNewerSchema)
		if !bytes.Equal(readFile(t, o.Path), before) || !stat(t, o.Path).ModTime().Equal(info.ModTime()) {
			t.Fatal("the file was written to")
		}
		if _, err := os.Stat(markerPath(o.Path)); (err == nil) != clean {
			t.Fatalf("marker: %v", err)
		}
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestAnUnreadableMetaRecordIsRefused(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	mustUpdate(t, s, func(tx *Tx) error { return tx.put(bucketMeta, keyMeta, []byte{0xff}) })
	closeStore(t, s)
	wantRefused(t, o, "meta record", readFile(t, o.Path))
}

func TestAReplacedFileIsNotOpenedInThePlaceOfTheInspectedOne(t *testing.T) {
	o := testOptions(t.TempDir())
	closeStore(t, mustOpen(t, o))
	seen, err := inspect(t.Context(), o, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(o.Path, o.Path+".away"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openForWriting(o, seen); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("error %v", err)
	}
	writeFile(t, o.Path, nil)
	if _, _, err := openForWriting(o, seen); err == nil {
		t.Fatal("an empty file was filled")
	}
	if raw := readFile(t, o.Path); len(raw) != 0 {
		t.Fatal("an empty file was filled")
	}
}

// seedFixture has the six published buckets and nothing else; see makeSeedFixture.
const seedFixture = "testdata/schema0.db"

func TestADatabaseOfThePublishedContractIsIndexedOnce(t *testing.T) {
	o := testOptions(t.TempDir())
	writeFile(t, o.Path, readFile(t, seedFixture))
	s := mustOpen(t, o)
	if s.Meta().GetSchemaVersion() != SchemaVersion || s.InstallID() == "" {
		t.Fatalf("meta %v", s.Meta())
	}
	wantSeedContents(t, s)
	mustUpdate(t, s, appendEvents(execEvent("alpha", "x1", agboxv1.EventType_EXEC_FINISHED)))
	closeStore(t, s)
	again := mustOpen(t, o)
	if again.InstallID() != s.InstallID() {
		t.Fatal("the install id changed")
	}
	mustView(t, again, func(tx *Tx) {
		if tx.LastPosition() != 6 || tx.LastSequence("alpha") != 4 {
			t.Fatalf("position %d, sequence %d", tx.LastPosition(), tx.LastSequence("alpha"))
		}
	})
}

func wantSeedContents(t *testing.T, s *Store) {
	t.Helper()
	mustView(t, s, func(tx *Tx) {
		var order []string
		for _, ev := range tx.OrderedEvents(0, 100).Records {
			order = append(order, fmt.Sprint(ev.Position, " ", ev.Event.GetEventId()))
		}
		want := "[1 alpha/1 2 beta/1 3 beta/2 4 alpha/2 5 alpha/3]"
		if fmt.Sprint(order) != want {
			t.Fatalf("order %v, want %v", order, want)
		}
		if ev, err := tx.ExecLastEvent("alpha", "x1"); err != nil || ev.GetSequence() != 3 {
			t.Fatalf("last event %v, %v", ev, err)
		}
		if id, ok := tx.ExecSandbox("x1"); !ok || id != "alpha" {
			t.Fatalf("exec's sandbox %q", id)
		}
		if at, ok := tx.DeletedAt("beta"); !ok || !at.Equal(testTime) {
			t.Fatalf("deleted at %v", at)
		}
	})
}

func TestMigrationsRunInOrderOnceAndAllOrNone(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	s.queue.close()
	s.writer.Wait() // the writer must not run during the migrations
	var ran []uint32
	list := []migration{{SchemaVersion, "done long ago", func(*Tx) error {
		t.Error("it ran again")
		return nil
	}}}
	for to := SchemaVersion + 1; to <= SchemaVersion+3; to++ {
		list = append(list, migration{to, "made up", func(tx *Tx) error {
			ran = append(ran, to)
			_, err := tx.bolt.CreateBucket([]byte(numbered("m", int(to))))
			return err
		}})
	}
	failing := append(list[:3:3], migration{SchemaVersion + 3, "failing", func(*Tx) error { return errRefused }})
	if _, err := migrate(s.db, s.keys, failing, testTime); !errors.Is(err, errRefused) {
		t.Fatalf("error %v", err)
	}
	mustView(t, s, func(tx *Tx) {
		if m, _ := tx.Meta(); m.GetSchemaVersion() != SchemaVersion {
			t.Fatalf("half a migration stayed: %v", m)
		}
	})
	ran = nil
	for range 2 {
		meta, err := migrate(s.db, s.keys, list, testTime)
		if err != nil || meta.GetSchemaVersion() != SchemaVersion+3 || meta.GetInstallId() != s.InstallID() {
			t.Fatalf("meta %v, error %v", meta, err)
		}
	}
	if fmt.Sprint(ran) != fmt.Sprint([]uint32{SchemaVersion + 1, SchemaVersion + 2, SchemaVersion + 3}) {
		t.Fatalf("ran %v", ran)
	}
}

func TestTheListOfMigrationsHasNoGapAndEndsAtTheSchemaVersion(t *testing.T) {
	for i, m := range migrations {
		if m.to != uint32(i+1) {
			t.Fatalf("migration %d leads to %d", i, m.to)
		}
	}
	if len(migrations) != int(SchemaVersion) {
		t.Fatalf("%d migrations, schema %d", len(migrations), SchemaVersion)
	}
}
