package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRemoveDeletesOneExecAndNoOther(t *testing.T) {
	d, path := openDir(t)
	for _, id := range []string{"e1", "e1.index", "e10"} {
		must(t, create(t, d, id, testOptions).Close())
		must(t, d.WriteStatus(id, []byte("x"), statusOptions))
	}
	writeFile(t, path, statusTemp("e1"), nil)
	reader := open(t, d, "e1", Cursor{})
	must(t, d.Remove(t.Context(), "e1"))
	must(t, d.Remove(t.Context(), "e1"))
	must(t, reader.Close())

	if _, err := d.Open("e1", Cursor{}); !errors.Is(err, ErrNotExist) {
		t.Errorf("Open after Remove: %v, want ErrNotExist", err)
	}
	entries, err := os.ReadDir(path)
	must(t, err)
	if len(entries) != 8 {
		t.Errorf("%d files are left, want 4 of each other exec: %v", len(entries), entries)
	}
}

func TestRemoveAllDeletesWhateverTheContainerHasLeft(t *testing.T) {
	root := t.TempDir()
	path, victim := filepath.Join(root, "sb1"), filepath.Join(root, "victim")
	must(t, os.Mkdir(path, 0o700))
	must(t, os.MkdirAll(filepath.Join(victim, "dir"), 0o700))
	for kind, put := range hostile {
		if kind == "hard link" || kind == "socket" {
			continue // a directory has no hard link; the name is too long for a socket
		}
		must(t, put(filepath.Join(path, kind), victim))
		must(t, os.MkdirAll(filepath.Join(path, "deep", kind, "x"), 0o700))
		must(t, put(filepath.Join(path, "deep", kind, "x", kind), victim))
	}
	must(t, os.MkdirAll(filepath.Join(path, ".removing-1", "a", "b"), 0o700)) // a name that removal uses
	for i := range 1500 {                                                     // more than one list of names
		writeFile(t, path, fmt.Sprintf("f%d", i), nil)
	}

	must(t, RemoveAll(t.Context(), root, "sb1"))
	must(t, RemoveAll(t.Context(), root, "sb1"))
	must(t, RemoveAll(t.Context(), filepath.Join(root, "none"), "sb1"))
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(victim, "dir")); err != nil {
		t.Errorf("the victim was harmed: %v", err)
	}
}

func TestRemoveAllEndsWithItsContext(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "sb1", "x"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveAll(ctx, root, "sb1"); !errors.Is(err, context.Canceled) {
		t.Errorf("RemoveAll: %v, want Canceled", err)
	}
}

func TestATreeOfAnyDepthIsRemovedWithFewDescriptors(t *testing.T) {
	runChild(t, "few-descriptors", false)
}

func removeDeepTree(dir string) error {
	const depth = 5000 // a path of this depth is longer than any call accepts
	if err := makeDeep(filepath.Join(dir, "sb1"), depth); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 32, Max: 32}); err != nil {
		return err
	}
	if err := RemoveAll(context.Background(), dir, "sb1"); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, "sb1")); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the directory is still there: %w", err)
	}
	return nil
}

func makeDeep(path string, depth int) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	at, err := unix.Open(path, unix.O_DIRECTORY, 0)
	for range depth {
		if err != nil {
			return err
		}
		if err := unix.Mkdirat(at, "d", 0o700); err != nil {
			return err
		}
		var next int
		next, err = unix.Openat(at, "d", unix.O_DIRECTORY, 0)
		_ = unix.Close(at)
		at = next
	}
	return errors.Join(err, unix.Close(at))
}

// TestSlimRemovesTheStatusLast: with it, the next pass knows that there is something left.
func TestSlimRemovesTheStatusLast(t *testing.T) {
	d, path := openDir(t)
	must(t, d.WriteStatus("e", []byte("x"), statusOptions))
	must(t, os.MkdirAll(filepath.Join(path, BeatName("e"), "full"), 0o700)) // a container has made a folder of it
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Slim(ctx, "e"); !errors.Is(err, context.Canceled) {
		t.Fatalf("it ends with %v", err)
	}
	if _, err := d.ReadStatus("e"); err != nil {
		t.Errorf("the status after an interruption: %v", err)
	}
	must(t, d.Slim(t.Context(), "e"))
	if _, err := d.ReadStatus("e"); !errors.Is(err, ErrNotExist) {
		t.Errorf("the status in the end: %v", err)
	}
}

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
