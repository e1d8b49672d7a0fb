package edits

import (
	"crypto/sha256"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAFileIsBroughtOnlyOverTheVersionOfTheBase(t *testing.T) {
	versions := []*File{nil, version("a"), version("b"), version("x:a"), version("l:a")}
	for _, base := range versions {
		for _, folder := range versions {
			for _, sandbox := range versions {
				got := Decide(base, folder, sandbox)
				want := Clash
				switch {
				case Same(folder, sandbox):
					want = Agreed
					if Same(folder, base) {
						want = InStep
					}
				case Same(folder, base):
					want = ToFolder
				case Same(sandbox, base):
					want = ToSandbox
				}
				mirror := map[Direction]Direction{ToFolder: ToSandbox, ToSandbox: ToFolder}
				back, ok := mirror[got]
				if !ok {
					back = got
				}
				if got != want || Decide(base, sandbox, folder) != back {
					t.Errorf("%v, %v, %v: %d, not %d", base, folder, sandbox, got, want)
				}
			}
		}
	}
}

// shared returns what a tree is as a base.
func shared(tr tree) Shared {
	s := Shared{Files: make(map[string]*File)}
	for name, text := range tr {
		s.Files[name] = version(text)
	}
	return s
}

// names lists what a scan has found. A removed file has a "-".
func names(s Scan) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Changed)) {
		if s.Changed[name] == nil {
			name = "-" + name
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func TestAScanFindsWhatAFolderHasChanged(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	base := tree{"a": "a", "mode": "m", "link": "l:a", "gone": "g", "d/x": "x", "kept.o": "old", "build/kept": "k", "file": "f", "way/x": "x", "copied/x": "x"}
	base.write(t, dir)
	b := shared(base)
	b.Foreign, b.Excludes = []string{"copied"}, []string{"*.tmp"}
	s := &Scanner{Folder: dir}
	tree{".gitignore": "*.o\n/build\n"}.write(t, dir)
	b.Files[".gitignore"] = &File{Size: 12, Sum: sha256.Sum256([]byte("*.o\n/build\n"))}
	scan := func() string {
		t.Helper()
		got, err := s.Scan(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return names(got)
	}
	if got := scan(); got != "" {
		t.Errorf("nothing was changed, and it found %s", got)
	}
	tree{
		"secret": "of others", ".git/config": "x",
	}.write(t, outside)
	steps := []error{
		os.Chmod(filepath.Join(dir, "mode"), 0o755), os.Remove(filepath.Join(dir, "gone")), os.Remove(filepath.Join(dir, "link")), os.Symlink("b", filepath.Join(dir, "link")),
		os.RemoveAll(filepath.Join(dir, "d")), os.Symlink(outside, filepath.Join(dir, "d")), // in the place of a folder
		os.Remove(filepath.Join(dir, "file")), unix.Mkfifo(filepath.Join(dir, "file"), 0o600), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.RemoveAll(filepath.Join(dir, "way")), os.RemoveAll(filepath.Join(dir, "copied")),
	}
	for _, err := range steps {
		if err != nil {
			t.Fatal(err)
		}
	}
	tree{
		"new/n": "n", "new.o": "o", "kept.o": "new", "build/kept": "changed", "build/out": "o", "x.tmp": "t", "way": "file", "copied/y": "y",
		".git/config": "x", "sub/.GIT/config": "x", "way2/way": "l:" + outside,
	}.write(t, dir)
	if got, want := scan(), "build/kept d -d/x -gone kept.o link mode new/n way -way/x way2/way"; got != want {
		t.Errorf("it found %s\nand not  %s", got, want)
	}
}

func TestAScanReadsAFileAgainWhoseTimeAndSizeAreAsBefore(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "a")
	base := tree{"a": "old"}
	base.write(t, dir)
	s := &Scanner{Folder: dir}
	// An earlier scan knows the file well, as if it had been there for long.
	if _, err := s.Scan(t.Context(), shared(base)); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		t.Fatal(err)
	}
	s.known["a"] = scanned{stamp{st.Ino, st.Size, st.Mode, st.Mtim, st.Ctim}, shared(base).Files["a"]}
	was := time.Unix(st.Mtim.Unix())
	for {
		if err := os.WriteFile(at, []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(at, was, was); err != nil {
			t.Fatal(err)
		}
		var now unix.Stat_t
		if err := unix.Lstat(at, &now); err != nil {
			t.Fatal(err)
		}
		if now.Ctim != st.Ctim { // the clock of files has moved on
			break
		}
	}
	got, err := s.Scan(t.Context(), shared(base))
	if err != nil || names(got) != "a" {
		t.Errorf("it found %q, %v", names(got), err)
	}
	if f, text, err := ReadFile(dir, "a"); err != nil || string(text) != "new" || !Same(f, got.Changed["a"]) {
		t.Errorf("the file is %q, %v, %v", text, f, err)
	}
}

func TestNoFileIsReadThroughALink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	tree{"secret": "of others"}.write(t, outside)
	tree{"d": "l:" + outside, "f": "l:" + outside + "/secret"}.write(t, dir)
	if f, text, err := ReadFile(dir, "d/secret"); err == nil {
		t.Errorf("read %v: %q", f, text)
	}
	if f, text, err := ReadFile(dir, "f"); err != nil || !f.Link || string(text) != outside+"/secret" {
		t.Errorf("a link is %v, %q, %v", f, text, err)
	}
	if HasFolder(dir, "d") || !HasFolder(dir, ".") {
		t.Error("a link is taken for a folder")
	}
}
