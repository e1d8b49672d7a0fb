package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

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
