package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var list []string
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return list
}

func TestAFolderIsRemovableIfItIsFlatAndOurs(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"a folder in it": func(dir string) error { return os.Mkdir(filepath.Join(dir, "x"), 0o700) },
		"not writable":   func(dir string) error { return os.Chmod(dir, 0o500) },
		"not readable":   func(dir string) error { return os.Chmod(dir, 0o300) },
	} {
		dir := filepath.Join(t.TempDir(), "folder")
		must(t, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o000), os.Symlink("/", filepath.Join(dir, "link")))
		if ok, err := Removable(dir); !ok || err != nil {
			t.Errorf("a folder with files: %v, %v", ok, err)
		}
		must(t, change(dir))
		if ok, err := Removable(dir); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
		must(t, os.Chmod(dir, 0o700))
	}
	for name, path := range map[string]string{"missing": filepath.Join(t.TempDir(), "none"), "a file": os.Args[0]} {
		if ok, err := Removable(path); !ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

func TestAReclaimedFolderHasOnlyWhatItsUserCanRemove(t *testing.T) {
	for what, want := range map[Selection][]string{Everything: nil, Directories: {"file", "link"}} {
		dir := filepath.Join(t.TempDir(), "folder")
		must(t, os.MkdirAll(filepath.Join(dir, "a", strings.Repeat("deep/", 50), "x"), 0o700), os.MkdirAll(filepath.Join(dir, ".removing-1", "y"), 0o700),
			os.WriteFile(filepath.Join(dir, "file"), nil, 0o600), os.WriteFile(filepath.Join(dir, "a", "inner"), nil, 0o600),
			os.Symlink("/", filepath.Join(dir, "link")), os.Chmod(dir, 0o711))
		must(t, Reclaim(t.Context(), dir, os.Getuid(), os.Getgid(), what))
		if got := names(t, dir); !slices.Equal(got, want) {
			t.Errorf("it leaves %v, want %v", got, want)
		}
		if ok, err := Removable(dir); !ok || err != nil {
			t.Errorf("it leaves a folder that is not removable: %v", err)
		}
		must(t, Reclaim(t.Context(), filepath.Join(dir, "none"), os.Getuid(), os.Getgid(), what))
	}
}

func TestALinkInPlaceOfAFolderIsNotReclaimed(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "other", "kept"), 0o700), os.Symlink("other", filepath.Join(dir, "link")))
	if err := Reclaim(t.Context(), filepath.Join(dir, "link"), os.Getuid(), os.Getgid(), Everything); err == nil {
		t.Error("a link was followed")
	}
	must(t, RemoveAll(t.Context(), filepath.Join(dir, "link")))
	if got := names(t, filepath.Join(dir, "other")); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("behind the link is %v", got)
	}
}

func TestRemovalEndsWithItsContextAndCanBeRepeated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	must(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveAll(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled removal gives %v", err)
	}
	must(t, RemoveAll(t.Context(), dir), RemoveAll(t.Context(), dir), RemoveAll(t.Context(), filepath.Join(dir, "below", "nothing")))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}
