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
		here := filepath.Join(dir, c.here)
		if got := strings.Join(PathsIn(filepath.Join(dir, c.folder), here, []string{c.name}), " "); got != c.path {
			t.Errorf("%s in %s is %s of %s, want %s", c.name, c.here, got, c.folder, c.path)
		}
	}
}

func TestAbsolutePathsAreThoseInTheFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "real/a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range [][2]string{{"real", "link"}, {"b", "real/a/inner"}, {".", "real/a/self"}, {"/", "real/root"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ folder, name, want string }{
		{"real/a", "real/a", "."},
		{"real/a", "real/a/new/f", "new/f"},
		{"real/a", "link/a/new/f", "new/f"},
		{"link/a", "real/a/b/f", "b/f"},
		{"real/a", "link/a/inner/f", "inner/f"}, // a link in the folder is a file of it
		{"real/a", "link/a/self/f", "self/f"},   // also if it leads to the folder
		{"real/a", "link/a/self", "self"},
		{"real/a", "link/a", "."},
		{"link", "real/root", "root"},
		{"real/a", "real/aa", ""},
		{"real/a", "real", ""},
	} {
		name := filepath.Join(dir, c.name)
		want := c.want
		if want == "" {
			want = name
		}
		if got := strings.Join(PathsIn(filepath.Join(dir, c.folder), "/", []string{name}), " "); got != want {
			t.Errorf("%s is %s of %s, want %s", c.name, got, c.folder, want)
		}
	}
}
