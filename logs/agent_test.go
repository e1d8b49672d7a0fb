package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestTheNewestBeatReplacesTheOneBefore(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	must(t, err)
	defer d.Close()
	if _, err := d.ReadBeat("e"); !errors.Is(err, ErrNotExist) {
		t.Errorf("without a beat: %v", err)
	}
	b, err := d.CreateBeat("e", KeepOwner)
	must(t, err)
	must(t, b.Write([]byte("the first, which is long")))
	must(t, b.Write([]byte("second")))
	if err := b.Write(make([]byte, BeatSize+1)); err == nil {
		t.Error("a record that is too long was written")
	}
	must(t, b.Close())
	raw, err := d.ReadBeat("e")
	if err != nil || len(raw) != BeatSize || strings.TrimSpace(string(raw)) != "second" {
		t.Errorf("%q, %v", raw, err)
	}
	if _, err := d.CreateBeat("e", KeepOwner); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second file: %v", err)
	}
	must(t, os.Truncate(filepath.Join(path, BeatName("e")), 1<<40))
	if raw, err := d.ReadBeat("e"); err != nil || len(raw) != BeatSize {
		t.Errorf("%d bytes of a huge file, %v", len(raw), err)
	}
	must(t, unix.Mkfifo(filepath.Join(path, BeatName("fifo")), 0o600))
	must(t, os.Symlink("/etc/passwd", filepath.Join(path, BeatName("link"))))
	for _, id := range []string{"fifo", "link"} {
		if _, err := d.ReadBeat(id); !errors.Is(err, ErrTampered) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func checkpoint(t *testing.T, d *Dir, q *Quota, seq uint64, content string) error {
	t.Helper()
	c, err := d.CreateCheckpoint("e", q, KeepOwner)
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte(content)); err != nil {
		return errors.Join(err, c.Discard())
	}
	return errors.Join(c.Sync(), c.Commit(seq))
}

func readCheckpoint(t *testing.T, d *Dir, seq uint64) string {
	t.Helper()
	f, err := d.OpenCheckpoint("e", seq)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestTheNewestCheckpointsAreThereAtAnyTime(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	must(t, err)
	defer d.Close()
	for seq := uint64(1); seq <= 20; seq++ {
		must(t, checkpoint(t, d, nil, seq, fmt.Sprint(seq)))
		c, err := d.CreateCheckpoint("e", nil, KeepOwner) // begun and not committed
		must(t, err)
		_, err = c.Write([]byte("part"))
		must(t, err)
		for back := range min(seq, CheckpointSlots-1) {
			if got := readCheckpoint(t, d, seq-back); got != fmt.Sprint(seq-back) {
				t.Errorf("checkpoint %d after %d is %q", seq-back, seq, got)
			}
		}
		must(t, c.file.Close()) // as if the supervisor was killed
	}
	for _, name := range []string{"e.ckpt-0.json", "e.ckpt-5.json"} {
		if id, ok := ExecOf(name); !ok || id != "e" {
			t.Errorf("%s belongs to %q", name, id)
		}
	}
	must(t, d.RemoveCheckpoints("e"))
	must(t, d.RemoveCheckpoints("e"))
	if left, _ := os.ReadDir(path); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	must(t, checkpoint(t, d, nil, 1, "x"))
	must(t, d.Remove(t.Context(), "e"))
	if left, _ := os.ReadDir(path); len(left) > 0 {
		t.Errorf("the removal of the exec left %v", left)
	}
}

func TestCheckpointsCountTowardsTheQuota(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	must(t, err)
	defer d.Close()
	q := &Quota{dir: d, max: 50, reserve: 28}
	for seq := uint64(1); seq <= 15; seq++ { // each replaces one of the same size from the seventh on
		must(t, checkpoint(t, d, q, seq, "123456789"))
	}
	if err := checkpoint(t, d, q, 16, "12345678901"); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a checkpoint over the quota: %v", err)
	}
	if got := readCheckpoint(t, d, 10); got != "123456789" {
		t.Errorf("the failed checkpoint left %q", got)
	}
	must(t, checkpoint(t, d, q, 16, "12"))
	if q.used != 5*9+2 {
		t.Errorf("the quota counts %d bytes", q.used)
	}
	if counted, err := d.outputBytes(); err != nil || counted != q.used {
		t.Errorf("there are %d bytes: %v", counted, err)
	}
}

func TestOnlyARegularFileIsACheckpoint(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	must(t, err)
	defer d.Close()
	name := filepath.Join(path, CheckpointName("e", 1))
	must(t, os.Symlink("/etc/passwd", name))
	if _, err := d.OpenCheckpoint("e", 1); !errors.Is(err, ErrTampered) {
		t.Errorf("a link: %v", err)
	}
	must(t, checkpoint(t, d, nil, 1, "x")) // replaces the link
	if got := readCheckpoint(t, d, 1); got != "x" {
		t.Errorf("it is %q", got)
	}
	must(t, os.Link(name, filepath.Join(path, "other")))
	if _, err := d.OpenCheckpoint("e", 1); !errors.Is(err, ErrTampered) {
		t.Errorf("a second link: %v", err)
	}
	if _, err := d.OpenCheckpoint("e", 2); !errors.Is(err, ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	if _, err := d.OpenCheckpoint("../e", 2); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a path as the id: %v", err)
	}
}

func TestAJournalIsAppendedToAndRead(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.OpenJournal("e"); !errors.Is(err, ErrNotExist) {
		t.Errorf("a journal that does not exist: %v", err)
	}
	quota := d.NewQuota(15)
	quota.reserve = 0
	j, err := d.CreateJournal("e", 10, quota, KeepOwner)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for i, row := range []struct {
		text string
		want error
	}{{"abc\n", nil}, {"def\n", nil}, {"ghi\n", errdefs.ErrResourceExhausted}, {"x\n", nil}} {
		if err := j.Append([]byte(row.text), i%2 == 0); !errors.Is(err, row.want) {
			t.Errorf("append %q: %v; want %v", row.text, err, row.want)
		}
	}
	if _, err := d.CreateJournal("e", 10, nil, KeepOwner); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second journal of an exec: %v", err)
	}
	second, err := d.CreateJournal("f", 100, quota, KeepOwner)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.Append([]byte("123456\n"), false); !errdefs.IsResourceExhausted(err) {
		t.Errorf("an append over the quota: %v", err)
	}
	if err := second.Append([]byte("1234\n"), false); err != nil {
		t.Errorf("an append within the quota: %v", err)
	}
	if got := read(t, d, "e") + read(t, d, "f"); got != "abc\ndef\nx\n1234\n" {
		t.Errorf("the journals have %q", got)
	}
	if err := d.Remove(t.Context(), "e"); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(path, "e*")); len(left) > 0 {
		t.Errorf("the removal left %v", left)
	}
}

func TestOutputLeavesRoomForJournals(t *testing.T) {
	d := quotaDir(t)
	q := d.NewQuota(1000)
	q.reserve = 20
	noisy := quotaWriter(t, d, "noisy", q)
	noisy.Write(Stdout, time.Now(), make([]byte, 5000))
	if n := noisy.Counts(); n.StdoutDropped == 0 {
		t.Fatalf("the output has not reached the limit: %+v", n)
	}
	j, err := d.CreateJournal("e", 100, q, KeepOwner)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for range 2 {
		if err := j.Append([]byte("123456789\n"), true); err != nil {
			t.Errorf("a row after the output has reached the limit: %v", err)
		}
	}
	if err := j.Append([]byte("1\n"), true); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a row beyond the reserve: %v", err)
	}
	dropped := noisy.Counts().StdoutDropped
	if noisy.Write(Stdout, time.Now(), make([]byte, 10)); noisy.Counts().StdoutDropped != dropped+10 {
		t.Errorf("output was written into the reserve: %+v", noisy.Counts())
	}
}

func read(t *testing.T, d *Dir, execID string) string {
	t.Helper()
	f, err := d.OpenJournal(execID)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestAJournalThatIsNoFileOfItsOwnIsNotRead(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for id, make := range map[string]func(string) error{
		"link": func(at string) error { return os.Symlink(secret, at) },
		"hard": func(at string) error { return os.Link(secret, at) },
		"dir":  func(at string) error { return os.Mkdir(at, 0o700) },
	} {
		if err := make(filepath.Join(path, JournalName(id))); err != nil {
			t.Fatal(err)
		}
		if _, err := d.OpenJournal(id); !errors.Is(err, ErrTampered) {
			t.Errorf("%s: %v; want ErrTampered", id, err)
		}
		if _, err := d.CreateJournal(id, 10, nil, KeepOwner); !errdefs.IsAlreadyExists(err) {
			t.Errorf("%s: it is written: %v", id, err)
		}
	}
	if _, err := d.OpenJournal("../" + strings.Repeat("x", 3)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a path as an id: %v", err)
	}
}

func TestResultsCountAndGoWithTheirExec(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	must(t, err)
	defer d.Close()
	quota := d.NewQuota(100)
	r, err := d.CreateResults("e", quota, KeepOwner)
	must(t, err)
	if _, err := d.CreateResults("e", quota, KeepOwner); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("a second file: %v", err)
	}
	_, err = r.WriteAt(make([]byte, 60), 30)
	must(t, err)
	if _, err := r.WriteAt(make([]byte, 60), 90); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("beyond the limit of the logs: %v", err)
	}
	must(t, r.Close())
	if used, err := d.outputBytes(); err != nil || used != 90 {
		t.Errorf("%d bytes count, %v", used, err)
	}
	if id, ok := ExecOf("e.results"); !ok || id != "e" {
		t.Errorf("the file belongs to %q", id)
	}
	must(t, d.Remove(t.Context(), "e"))
	if _, err := d.OpenResults("e"); !errors.Is(err, ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}
	must(t, os.Symlink("/etc/passwd", filepath.Join(path, "e.results")))
	if _, err := d.OpenResults("e"); !errors.Is(err, ErrTampered) {
		t.Errorf("a link: %v", err)
	}
}
