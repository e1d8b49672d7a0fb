package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// quotaWriter makes the files of an exec within a quota.
func quotaWriter(t *testing.T, d *Dir, id string, q *Quota) *Writer {
	t.Helper()
	w, err := d.Create(id, WriterOptions{Quota: q, Owner: KeepOwner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func quotaDir(t *testing.T) *Dir {
	t.Helper()
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestExecsShareOneQuota(t *testing.T) {
	d := quotaDir(t)
	q := d.NewQuota(1000)
	a, b := quotaWriter(t, d, "a", q), quotaWriter(t, d, "b", q)
	now := time.Now()
	a.Write(Stdout, now, make([]byte, 400))
	b.Write(Stderr, now, make([]byte, 400))
	a.Write(Stderr, now, make([]byte, 400))
	if n := a.Counts(); n != (Counts{Stdout: 400, Stderr: 104, StderrDropped: 296}) {
		t.Errorf("the first kept %+v", n)
	}
	b.Write(Stdout, now, make([]byte, 1))
	if n := b.Counts(); n != (Counts{Stderr: 400, StdoutDropped: 1}) {
		t.Errorf("the second kept %+v", n)
	}
}

func TestTheIndexOfShortWritesCountsAgainstTheQuota(t *testing.T) {
	d := quotaDir(t)
	w := quotaWriter(t, d, "a", d.NewQuota(1000))
	for range 1000 {
		w.Write(Stdout, time.Now(), []byte("x"))
	}
	index, err := os.Stat(filepath.Join(d.path, IndexName("a")))
	if err != nil {
		t.Fatal(err)
	}
	if n := w.Counts(); n.Stdout+n.StdoutDropped != 1000 || n.Stdout < 25 || n.Stdout+uint64(index.Size()) > 1000 {
		t.Errorf("%+v is kept with an index of %d bytes", n, index.Size())
	}
}

func TestFilesThatWereThereCountAgainstTheQuota(t *testing.T) {
	d := quotaDir(t)
	for name, size := range map[string]int{"old.stdout.log": 300, "old.stderr.log": 300, "old.index": 100, "stranger": 5000} {
		if err := os.WriteFile(filepath.Join(d.path, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(d.path, "dir.stdout.log"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := quotaWriter(t, d, "a", d.NewQuota(1000))
	w.Write(Stdout, time.Now(), make([]byte, 1000))
	if n := w.Counts(); n.Stdout != 268 || n.StdoutDropped != 732 {
		t.Errorf("kept %+v", n)
	}
}

func TestRemovedLogsMakeRoomAgain(t *testing.T) {
	d := quotaDir(t)
	q := d.NewQuota(1000)
	a, b := quotaWriter(t, d, "a", q), quotaWriter(t, d, "b", q)
	now := time.Now()
	a.Write(Stdout, now, make([]byte, 900))
	b.Write(Stdout, now, make([]byte, 200))
	if err := d.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	b.Write(Stdout, now.Add(recount/2), make([]byte, 200)) // the files are not counted at every write
	b.Write(Stdout, now.Add(recount), make([]byte, 200))
	if n := b.Counts(); n.Stdout != 236 || n.StdoutDropped != 364 {
		t.Errorf("kept %+v", n)
	}
}

func TestRoomThatAFailedWriteDidNotUseIsGivenBack(t *testing.T) {
	d := quotaDir(t)
	q := d.NewQuota(1000)
	now := time.Now()
	if n := q.take(now, 1000); n != 1000 {
		t.Fatalf("%d bytes granted", n)
	}
	if n := q.take(now, 1); n != 0 {
		t.Errorf("%d bytes granted over the quota", n)
	}
	q.commit(1000, 300)
	if n := q.take(now, 1000); n != 700 {
		t.Errorf("%d bytes granted of the 700 that are left", n)
	}
}

func TestTheTimeOfTheLastOutputIsKnown(t *testing.T) {
	d := quotaDir(t)
	w := quotaWriter(t, d, "a", nil)
	if !w.LastWrite().IsZero() {
		t.Error("there was output before any was written")
	}
	now := time.Now()
	w.Write(Stdout, now, bytes.Repeat([]byte("x"), 10))
	w.Write(Stderr, now.Add(time.Second), nil)
	if got := w.LastWrite(); !got.Equal(now) {
		t.Errorf("it is %v, not %v", got, now)
	}
}
