package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// usedDatabase makes a database with some hundred pages in use.
func usedDatabase(t testing.TB) (o Options, pageSize, used int) {
	t.Helper()
	o = testOptions(t.TempDir())
	s := mustOpen(t, o)
	for i := range 40 {
		mustUpdate(t, s, func(tx *Tx) error {
			id := numbered("s", i)
			for j := range 20 {
				ev := event(id, agboxv1.EventType_SANDBOX_FAILED)
				ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{
					Reason: fmt.Sprint(j, bytes.Repeat([]byte("because "), 30)),
				}}
				if err := tx.AppendEvent(ev); err != nil {
					return err
				}
			}
			return errors.Join(tx.ReserveSandbox(id, testTime), tx.PutSandboxConfig(id, &agboxv1.CreateSpec{Image: "i"}))
		})
	}
	closeStore(t, s)
	f, err := os.Open(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	g, err := probe(f)
	if err != nil {
		t.Fatal(err)
	}
	// bbolt grows the file far beyond the pages in use. Cut it, to keep tests fast.
	if err := os.Truncate(o.Path, g.pageSize*int64(g.pages)); err != nil {
		t.Fatal(err)
	}
	return o, int(g.pageSize), int(g.pages)
}

// wantRefused opens a database with the given bytes. Open must refuse it as
// damaged and leave it unchanged.
func wantRefused(t *testing.T, o Options, name string, raw []byte) {
	t.Helper()
	writeFile(t, o.Path, raw)
	s, err := Open(t.Context(), o)
	if err == nil {
		closeStore(t, s)
		t.Errorf("%s: opened", name)
		return
	}
	wantFault(t, err, ErrDamaged)
	if !bytes.Equal(readFile(t, o.Path), raw) {
		t.Errorf("%s: the file was changed", name)
	}
}

func TestADamagedFileIsRefusedAndLeftAsItIs(t *testing.T) {
	o, page, used := usedDatabase(t)
	whole := readFile(t, o.Path)
	edit := func(fn func(b []byte)) []byte {
		b := bytes.Clone(whole)
		fn(b)
		return b
	}
	wantRefused(t, o, "empty", nil)
	wantRefused(t, o, "garbage", bytes.Repeat([]byte("no database "), 4096))
	wantRefused(t, o, "all zero", make([]byte, len(whole)))
	for _, size := range []int{1, 15, 80, 512, page - 1, page, page + 79, 2 * page, 3*page + 7, used / 2 * page, used*page - 1} {
		wantRefused(t, o, fmt.Sprint("cut to ", size), whole[:size])
	}
	for meta := range 2 {
		wantRefused(t, o, fmt.Sprint("meta page zeroed ", meta), edit(func(b []byte) { clear(b[meta*page:][:page]) }))
		for bit := 0; bit < metaSize*8; bit += 13 {
			wantRefused(t, o, fmt.Sprintf("bit %d of meta %d", bit, meta), edit(func(b []byte) {
				b[meta*page+metaOffset+bit/8] ^= 1 << (bit % 8)
			}))
		}
	}
	writeFile(t, o.Path, whole)
	mustOpen(t, o)
}

func TestAZeroedPageIsRefused(t *testing.T) {
	o, page, used := usedDatabase(t)
	whole := readFile(t, o.Path)
	inUse := pagesInUse(t, o.Path)
	tried := 0
	for id := 2; id < used; id += 1 + used/25 {
		if !inUse[id] {
			continue
		}
		tried++
		b := bytes.Clone(whole)
		clear(b[id*page:][:page])
		wantRefused(t, o, fmt.Sprint("page ", id, " zeroed"), b)
	}
	if tried < 5 {
		t.Fatalf("only %d pages tried", tried)
	}
}

func TestKeysOutOfOrderAreRefused(t *testing.T) {
	o, size, used := usedDatabase(t)
	raw := readFile(t, o.Path)
	for id := 2; id < used; id++ {
		page := raw[id*size:][:size]
		if !bytes.Contains(page, []byte(prefixEvents)) { // changed bucket names would be noticed for another reason
			copy(page, bytes.ReplaceAll(page, []byte("s00003"), []byte("s00903")))
		}
	}
	wantRefused(t, o, "keys", raw)
}

// pagesInUse finds the first page of each node. Free pages and the overflow
// pages of a long node have no structure that the check could verify.
func pagesInUse(t *testing.T, path string) map[int]bool {
	t.Helper()
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	used := make(map[int]bool)
	err = db.View(func(b *bolt.Tx) error {
		for id := 0; ; {
			info, err := b.Page(id)
			if err != nil || info == nil {
				return err
			}
			used[id] = info.Type == "leaf" || info.Type == "branch" || info.Type == "freelist"
			id += 1 + info.OverflowCount
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}

func TestABadRecordNeitherPreventsOpeningNorHidesOtherRecords(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	id := "box"
	mustUpdate(t, s, func(tx *Tx) error {
		if err := appendEvents(event(id, 1), event(id, 2), event(id, 3))(tx); err != nil {
			return err
		}
		bad := []byte{0xff, 0xff, 0xff}
		return errors.Join(
			tx.put(bucketEvents(id), number(2), bad),
			tx.put(bucketSandboxConfig, []byte("spoilt"), bad),
			tx.PutSandboxConfig("whole", &agboxv1.CreateSpec{Image: "i"}),
			tx.put(bucketExecConfig(id), []byte("x"), bad),
			tx.put(bucketExecLastEvent(id), []byte("x"), []byte("short")),
			tx.put(bucketSandboxIDs, []byte("odd"), []byte("short")))
	})
	closeStore(t, s)
	if err := os.Remove(markerPath(o.Path)); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, o) // runs the check
	mustView(t, s, func(tx *Tx) {
		page := tx.Events(id, 0, 10, 0)
		if len(page.Records) != 2 || len(page.Bad) != 1 || page.Bad[0].Key != "2" || page.Next != 3 {
			t.Fatalf("page %+v", page)
		}
		ordered := tx.OrderedEvents(0, 10)
		if len(ordered.Records) != 2 || len(ordered.Bad) != 1 || ordered.Next != 3 {
			t.Fatalf("ordered %+v", ordered)
		}
		var record *RecordError
		if _, err := tx.SandboxConfig("spoilt"); !errors.As(err, &record) || record.Key != `"spoilt"` {
			t.Fatalf("config: %v", err)
		}
		if _, err := tx.SandboxConfig("whole"); err != nil {
			t.Fatalf("config: %v", err)
		}
		if _, err := tx.ExecConfig(id, "x"); !errors.As(err, &record) {
			t.Fatalf("exec config: %v", err)
		}
		if _, err := tx.ExecLastEvent(id, "x"); !errors.As(err, &record) {
			t.Fatalf("last event: %v", err)
		}
		if at, ok := tx.SandboxReserved("odd"); !ok || !at.IsZero() {
			t.Fatalf("reservation %v %v", at, ok)
		}
		if len(tx.SandboxIDs()) != 2 {
			t.Fatalf("ids %v", tx.SandboxIDs())
		}
	})
}

func TestTruncatingTheFileOfAnOpenStoreMakesItReadOnly(t *testing.T) {
	o, page, _ := usedDatabase(t)
	s := mustOpen(t, o)
	if err := os.Truncate(o.Path, int64(4*page)); err != nil {
		t.Fatal(err)
	}
	err := s.View(t.Context(), func(tx *Tx) error {
		for _, id := range tx.SandboxIDs() {
			tx.Events(id, 0, 100, 0)
		}
		return nil
	})
	wantFault(t, err, ErrDamaged)
	wantFault(t, s.Update(t.Context(), reserve("a")), ErrReadOnly)
}

func TestOnlyAnUncleanStopIsChecked(t *testing.T) {
	o := testOptions(t.TempDir())
	checks := 0
	command := o.CheckCommand
	o.CheckCommand = countCalls(command, &checks)
	closeStore(t, mustOpen(t, o))
	s := mustOpen(t, o)
	if _, err := os.Stat(markerPath(o.Path)); err == nil {
		t.Fatal("an open database is marked as cleanly closed")
	}
	closeStore(t, s)
	if checks != 0 {
		t.Fatalf("%d checks after clean stops", checks)
	}
	touched := time.Now().Add(time.Hour)
	if err := os.Chtimes(o.Path, touched, touched); err != nil {
		t.Fatal(err)
	}
	closeStore(t, mustOpen(t, o))
	if checks != 1 {
		t.Fatalf("%d checks after the file was touched", checks)
	}
	if err := os.Remove(markerPath(o.Path)); err != nil {
		t.Fatal(err)
	}
	closeStore(t, mustOpen(t, o))
	if checks != 2 {
		t.Fatalf("%d checks after an unclean stop", checks)
	}
}

func uncleanDatabase(t *testing.T) Options {
	t.Helper()
	o, _, _ := usedDatabase(t)
	if err := os.Remove(markerPath(o.Path)); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestACheckThatCrashesMeansDamage(t *testing.T) {
	o := uncleanDatabase(t)
	o.CheckCommand = childCommand("crash")
	_, err := Open(t.Context(), o)
	wantFault(t, err, ErrDamaged)
}

func TestACheckThatGivesNoVerdictIsNotDamage(t *testing.T) {
	o := uncleanDatabase(t)
	t.Run("out of time", func(t *testing.T) {
		o := o
		o.CheckCommand = childCommand("hang")
		o.CheckTimeout = 50 * time.Millisecond
		_, err := Open(t.Context(), o)
		wantFault(t, err, ErrCheckUnfinished)
	})
	t.Run("cancelled", func(t *testing.T) {
		o := o
		o.CheckCommand = childCommand("hang")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Open(ctx, o); err == nil || errors.Is(err, ErrDamaged) {
			t.Fatalf("error %v", err)
		}
	})
	for name, command := range map[string]func(string) *exec.Cmd{
		"not a check at all": childCommand("stranger"), "another program": otherProgram, "no such program": noProgram,
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.CheckCommand = command
			_, err := Open(t.Context(), o)
			wantFault(t, err, ErrCheckUnfinished)
		})
	}
	mustOpen(t, o)
}

func TestWithoutACommandTheCheckRunsInThisProcess(t *testing.T) {
	o := uncleanDatabase(t)
	o.CheckCommand = nil
	closeStore(t, mustOpen(t, o))
	page := os.Getpagesize()
	inUse := pagesInUse(t, o.Path)
	raw := readFile(t, o.Path)
	for id := range len(raw) / page {
		if id > 2 && inUse[id] {
			clear(raw[id*page:][:page])
			break
		}
	}
	wantRefused(t, o, "page zeroed", raw)
}

func TestAForeignBboltFileIsRefused(t *testing.T) {
	o := testOptions(t.TempDir())
	db, err := bolt.Open(o.Path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(b *bolt.Tx) error {
		_, err := b.CreateBucket([]byte("somebody-elses"))
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, o, "foreign", readFile(t, o.Path))
	if _, err := os.Stat(filepath.Clean(o.Sentinel)); err == nil {
		t.Fatal("a sentinel was written for it")
	}
}
