package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// makeFiles makes files of a size.
func makeFiles(t *testing.T, d *Dir, sizes map[string]int) {
	t.Helper()
	for name, size := range sizes {
		path := filepath.Join(d.path, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *Dir) list(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(d.path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestUsageCountsFilesOfEveryKindAndDepth(t *testing.T) {
	d := quotaDir(t)
	makeFiles(t, d, map[string]int{"a.stdout.log": 100 << 10, "stranger": 50 << 10, "sub/deep/file": 20 << 10, ".hidden": 1})
	if err := os.Symlink("/", filepath.Join(d.path, "link")); err != nil {
		t.Fatal(err)
	}
	got, err := d.Usage(t.Context(), 1000)
	if err != nil || got.Files != 7 || got.Bytes < 170<<10 || got.Bytes > 190<<10 {
		t.Errorf("counted %+v, %v", got, err)
	}
	if got, err := d.Usage(t.Context(), 3); err != nil || got.Files != 4 {
		t.Errorf("with a maximum of 3 it counted %+v, %v", got, err)
	}
}

func TestUsageCountsDiskSpaceNotSizes(t *testing.T) {
	d := quotaDir(t)
	makeFiles(t, d, map[string]int{"hole": 0, "reserved": 0})
	if err := os.Truncate(filepath.Join(d.path, "hole"), 1<<30); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(d.path, "reserved"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 8<<20); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Usage(t.Context(), 1000); err != nil || got.Bytes < 8<<20 || got.Bytes > 16<<20 {
		t.Errorf("counted %+v, %v, want the 8 MiB that are reserved", got, err)
	}
}

func TestUsageDoesNotFollowATreeWithoutEnd(t *testing.T) {
	d := quotaDir(t)
	if err := os.MkdirAll(filepath.Join(d.path, strings.Repeat("d/", 100)), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Usage(t.Context(), 1000); !errors.Is(err, ErrTooDeep) {
		t.Errorf("the count ends with %v", err)
	}
}

func TestRemoveOthersLeavesOnlyFilesThatAreKnown(t *testing.T) {
	d := quotaDir(t)
	makeFiles(t, d, map[string]int{
		"a.stdout.log": 1, "a.stderr.log": 1, "a.index": 1, "a.status": 1, ".a.status.tmp": 1,
		"b.stdout.log": 1, "stranger": 1, "tree/deep/file": 1, "a.index.x/file": 1,
	})
	for n := range 2000 {
		makeFiles(t, d, map[string]int{fmt.Sprintf("flood-%d.stdout.log", n): 0})
	}
	if err := errors.Join(os.Symlink("/", filepath.Join(d.path, "link")), os.Mkdir(filepath.Join(d.path, "c.status"), 0o700),
		os.Link(filepath.Join(d.path, "b.stdout.log"), filepath.Join(d.path, "c.index"))); err != nil {
		t.Fatal(err)
	}
	known := func(name string) bool {
		id, ok := ExecOf(name)
		return ok && (id == "a" || id == "c")
	}
	if err := d.RemoveOthers(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	left := d.list(t)
	left = slices.DeleteFunc(left, func(name string) bool { return name == "c.index" }) // a hard link, or what is left of one
	if !slices.Equal(left, []string{"a.index", "a.status", "a.stderr.log", "a.stdout.log"}) {
		t.Errorf("left are %q", left)
	}
}

func TestShrinkRemovesTheLargestFirst(t *testing.T) {
	d := quotaDir(t)
	makeFiles(t, d, map[string]int{"a.stdout.log": 300 << 10, "b.stdout.log": 200 << 10, "c.stdout.log": 100 << 10})
	if n, err := d.Shrink(t.Context(), 350<<10); err != nil || n != 1 || !slices.Equal(d.list(t), []string{"b.stdout.log", "c.stdout.log"}) {
		t.Errorf("%d were removed (%v), left are %q", n, err, d.list(t))
	}
}
