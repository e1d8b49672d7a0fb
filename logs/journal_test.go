package logs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

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
