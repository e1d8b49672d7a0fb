package logs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

func TestOnlyValidStatusNamesAreListed(t *testing.T) {
	d, path := openDir(t)
	for _, name := range []string{"e1.status", "e2.status", "e3.index", ".e4.status", ".status", "a b.status", "e5.status.tmp", "e6.stdout.log"} {
		must(t, os.WriteFile(filepath.Join(path, name), nil, 0o600))
	}
	must(t, os.Mkdir(filepath.Join(path, "tree.status"), 0o700))
	must(t, os.Symlink("/etc/passwd", filepath.Join(path, "link.status")))
	for range 2 { // a list begins at the beginning
		list, more, err := d.ExecIDs(t.Context(), 10)
		must(t, err)
		slices.Sort(list)
		if more || !slices.Equal(list, []string{"e1", "e2", "link", "tree"}) {
			t.Errorf("listed %q, more %v", list, more)
		}
	}
	for _, id := range []string{"link", "tree"} {
		if _, err := d.ReadStatus(id); !errors.Is(err, ErrTampered) {
			t.Errorf("reading %s gives %v, want ErrTampered", id, err)
		}
	}
}

func TestAListOfExecsIsBounded(t *testing.T) {
	d, path := openDir(t)
	for i := range 5 {
		must(t, os.WriteFile(filepath.Join(path, StatusName("e"+strconv.Itoa(i))), nil, 0o600))
	}
	if list, more, err := d.ExecIDs(t.Context(), 5); err != nil || more || len(list) != 5 {
		t.Errorf("of 5 it lists %d, more %v, error %v", len(list), more, err)
	}
	if list, more, err := d.ExecIDs(t.Context(), 4); err != nil || !more || len(list) != 4 {
		t.Errorf("with limit 4 it lists %d, more %v, error %v", len(list), more, err)
	}
	for i := range 2 * namesPerExec { // names that are no status files are bounded too
		must(t, os.WriteFile(filepath.Join(path, "junk"+strconv.Itoa(i)), nil, 0o600))
	}
	if list, more, err := d.ExecIDs(t.Context(), 1); err != nil || !more || len(list) > 1 {
		t.Errorf("with limit 1 it lists %d, more %v, error %v", len(list), more, err)
	}
}
