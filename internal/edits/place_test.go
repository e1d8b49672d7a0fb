package edits

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFilesAreCalledFromWhereOneStands(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "real/a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ folder, here, path, name string }{
		{"real", "real", "a/f", "a/f"},
		{"real", "real/a", "a/f", "f"},
		{"real", "real/a/b", "f", "../../f"},
		{"real", "link/a", "a/b/f", "b/f"},
		{"link", "real/a", "f", "../f"},
		{"real", ".", "a/f", "a/f"},
		{"real/a", "real/aa", "f", "f"},
	} {
		place := PlaceIn(filepath.Join(dir, c.folder), filepath.Join(dir, c.here))
		if got := place.Name(c.path); got != c.name {
			t.Errorf("%s of %s is %s in %s, want %s", c.path, c.folder, got, c.here, c.name)
		}
		if got := strings.Join(place.Paths([]string{c.name}), " "); got != c.path {
			t.Errorf("%s in %s is %s of %s, want %s", c.name, c.here, got, c.folder, c.path)
		}
	}
}
