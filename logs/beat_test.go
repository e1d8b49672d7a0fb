package logs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
