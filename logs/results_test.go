package logs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

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
