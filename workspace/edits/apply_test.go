package edits

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree is a tree of files: contents by path. "x:" before a content is an executable file,
// "l:" a link.
type tree map[string]string

func version(text string) *File {
	f := new(File)
	switch {
	case strings.HasPrefix(text, "x:"):
		f.Executable, text = true, text[2:]
	case strings.HasPrefix(text, "l:"):
		f.Link, text = true, text[2:]
	}
	f.Size, f.Sum = int64(len(text)), sha256.Sum256([]byte(text))
	return f
}

func content(text string) string {
	if strings.HasPrefix(text, "x:") || strings.HasPrefix(text, "l:") {
		return text[2:]
	}
	return text
}

// write makes the files of a tree in a folder.
func (tr tree) write(t testing.TB, dir string) {
	t.Helper()
	for name, text := range tr {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch {
		case strings.HasPrefix(text, "l:"):
			err = errors.Join(err, os.Symlink(text[2:], at))
		case strings.HasPrefix(text, "x:"):
			err = errors.Join(err, os.WriteFile(at, []byte(text[2:]), 0o755))
		default:
			err = errors.Join(err, os.WriteFile(at, []byte(text), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// load reads a folder, without git's own files.
func load(t testing.TB, dir string) tree {
	t.Helper()
	tr := make(tree)
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, at)
		if e.IsDir() {
			if e.Name() == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		if e.Type()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(at)
			tr[name] = "l:" + to
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(at)
		if tr[name] = string(text); st.Mode()&0o100 != 0 {
			tr[name] = "x:" + tr[name]
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// changes returns the work that makes one tree of another.
func changes(t testing.TB, base, theirs tree) []Change {
	t.Helper()
	return Renames(differences(t, base, theirs))
}

// differences is changes, with a removed and an added file for a renamed one.
func differences(t testing.TB, base, theirs tree) []Change {
	t.Helper()
	return differencesIn(t, t.TempDir(), base, theirs)
}

// differencesIn has the contents in a folder.
func differencesIn(t testing.TB, dir string, base, theirs tree) []Change {
	t.Helper()
	var all []Change
	names := maps.Clone(base)
	maps.Copy(names, theirs)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var before, after *File
		if text, ok := base[name]; ok {
			before = version(text)
		}
		if text, ok := theirs[name]; ok {
			after = version(text)
		}
		if Same(before, after) {
			continue
		}
		c := NewChange(dir, name, before, after)
		for at, text := range map[string]string{c.BeforeFile(): base[name], c.AfterFile(): theirs[name]} {
			if at == "" {
				continue
			}
			if err := os.WriteFile(at, []byte(content(text)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, c)
	}
	return all
}

// brought returns what Apply makes of a folder, and what it advances.
func brought(t testing.TB, base, ours, theirs tree) (got tree, out Applied, advanced tree) {
	t.Helper()
	dir := t.TempDir()
	ours.write(t, dir)
	advanced = maps.Clone(base)
	out, err := Apply(t.Context(), changes(t, base, theirs), ApplyOptions{Folder: dir, Data: t.TempDir(), Sandbox: "s", Label: "sandbox", Advance: advance(t, advanced)})
	if err != nil {
		t.Fatal(err)
	}
	return load(t, dir), out, advanced
}

// advance keeps a base as the daemon does.
func advance(t testing.TB, base tree) func(string, []AdvancedFile) error {
	return func(sandbox string, files []AdvancedFile) error {
		if sandbox != "s" {
			t.Errorf("the base of %s advances", sandbox)
		}
		for _, f := range files {
			delete(base, f.Path)
			if f.File == nil {
				continue
			}
			text, err := f.Content()
			if err != nil {
				return err
			}
			switch {
			case f.File.Link:
				base[f.Path] = "l:" + string(text)
			case f.File.Executable:
				base[f.Path] = "x:" + string(text)
			default:
				base[f.Path] = string(text)
			}
		}
		return nil
	}
}

func wantTree(t testing.TB, what string, got, want tree) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s is\n%q, want\n%q", what, got, want)
	}
}

func TestChangesOfBothSidesAreMerged(t *testing.T) {
	base := tree{"a": "1\n2\n3\n4\n5\n", "b": "x\n", "c": "same\n", "d/e": "deep\n", "run": "#!\n", "l": "l:a"}
	ours := tree{"a": "one\n2\n3\n4\n5\n", "b": "x\n", "c": "mine\n", "d/e": "deep\n", "run": "#!\nmore\n", "l": "l:a", "own": "o\n"}
	theirs := tree{"a": "1\n2\n3\n4\nfive\n", "c": "same\n", "d/moved": "deep\n", "run": "x:#!\n", "l": "l:/etc/passwd", "new/f": "n\n"}
	got, out, advanced := brought(t, base, ours, theirs)
	wantTree(t, "the folder", got, tree{
		"a": "one\n2\n3\n4\nfive\n", "c": "mine\n", "d/moved": "deep\n", "run": "x:#!\nmore\n", "l": "l:/etc/passwd", "own": "o\n", "new/f": "n\n",
	})
	wantTree(t, "the base", advanced, theirs)
	if out.Conflicts() != 0 || !out.Changed {
		t.Errorf("outcome %+v", out)
	}
}

// One side may have changed how all lines end, as git does when it checks a file out.
func TestEndsOfLinesAreNoConflict(t *testing.T) {
	const dos = "1\r\n2\r\n3\r\n4\r\n5\r\n"
	base := tree{"ours": dos, "theirs": "1\n2\n3\n4\n5\n", "both": dos, "user": dos, "mixed": "1\r\n2\n3\n", "bare": dos}
	ours := tree{"ours": "one\n2\n3\n4\n5\n", "theirs": "one\n2\n3\n4\n5\n", "both": "one\n2\n3\n4\n5\n", "user": "1\n2\n3\n4\n5\n", "mixed": "1\n2\n3\n", "bare": "1\r2\n3\n4\n5\n"}
	theirs := maps.Clone(base)
	for name, text := range base {
		theirs[name] = strings.ReplaceAll(strings.ReplaceAll(text, "5", "five"), "3", "three")
	}
	theirs["theirs"], theirs["both"] = "1\r\n2\r\n3\r\n4\r\nfive\r\n", "1\n2\n3\n4\nfive\n"
	got, out, _ := brought(t, base, ours, theirs)
	all := tree{
		"ours": "one\n2\nthree\n4\nfive\n", "theirs": "one\r\n2\r\n3\r\n4\r\nfive\r\n", "both": "one\n2\n3\n4\nfive\n", "user": "1\n2\nthree\n4\nfive\n",
	}
	for name, want := range all {
		if got[name] != want {
			t.Errorf("the folder has of %s %q, and not %q", name, got[name], want)
		}
	}
	if out.Conflicts() != 1 { // a part of the ends, or a return in a line, is text
		t.Errorf("%d conflicts: %+v", out.Conflicts(), out.Outcomes)
	}
}

func TestConflictsLookAsThoseOfGit(t *testing.T) {
	base := tree{"a": "1\n2\n3\n", "gone": "x\n", "bin": "\x00", "l": "l:a", "f": "f\n"}
	ours := tree{"a": "1\nours\n3\n", "gone": "changed\n", "bin": "\x00o", "l": "l:o", "new": "o\n", "dir": "l:/tmp", "f": "f\n"}
	theirs := tree{"a": "1\ntheirs\n3\n", "bin": "\x00t", "l": "l:t", "new": "t\n", "dir/x": "through a link\n", "f": "f\n"}
	got, out, advanced := brought(t, base, ours, theirs)
	want := maps.Clone(ours)
	want["a"] = "1\n<<<<<<< folder\nours\n=======\ntheirs\n>>>>>>> sandbox\n3\n"
	want["new"] = "<<<<<<< folder\no\n=======\nt\n>>>>>>> sandbox\n"
	wantTree(t, "the folder", got, want)
	wantTree(t, "the base", advanced, base)
	if out.Conflicts() != 6 {
		t.Errorf("%d conflicts: %+v", out.Conflicts(), out.Outcomes)
	}
}

func TestNothingIsBroughtInsideARepository(t *testing.T) {
	theirs := tree{".git/hooks/pre-commit": "x:evil", "sub/.GIT/config": "evil", "ok": "1"}
	got, out, _ := brought(t, tree{}, tree{".git/config": "own"}, theirs)
	wantTree(t, "the folder", got, tree{"ok": "1"})
	if out.Conflicts() != 2 {
		t.Errorf("outcome %+v", out)
	}
	for _, path := range []string{"../x", "/etc/x", "a/../../x", "a//b", "./a", "a\x00b", ""} {
		if usable(path) {
			t.Errorf("%q is usable", path)
		}
	}
}

func TestAFileAndAFolderReplaceEachOther(t *testing.T) {
	base := tree{"a": "file\n", "b/c": "1\n", "b/d/e": "2\n", "k/x": "3\n"}
	theirs := tree{"a/b/c": "below\n", "b": "file now\n", "k": "another file\n"}
	ours := maps.Clone(base)
	ours["k/untracked"] = "of the user\n"
	got, out, _ := brought(t, base, ours, theirs)
	wantTree(t, "the folder", got, tree{"a/b/c": "below\n", "b": "file now\n", "k/untracked": "of the user\n"})
	if out.Conflicts() != 1 {
		t.Errorf("outcome %+v", out)
	}
	// A file that cannot move away is in the way.
	theirs["k"], theirs["a/b/c"] = base["a"], "below a\n"
	got, out, _ = brought(t, base, ours, theirs)
	wantTree(t, "the folder with a rename", got, tree{"a": "file\n", "b": "file now\n", "k/untracked": "of the user\n"})
	if out.Conflicts() != 2 {
		t.Errorf("outcome %+v", out)
	}
}

func TestPermissionsStayAndPrivilegesNever(t *testing.T) {
	dir := t.TempDir()
	tree{"private": "1\n", "tool": "x:1\n"}.write(t, dir)
	for name, mode := range map[string]os.FileMode{"private": 0o600, "tool": 0o755 | os.ModeSetuid} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	work := changes(t, tree{"private": "1\n", "tool": "x:1\n"}, tree{"private": "x:2\n", "tool": "x:2\n", "new": "x:3\n"})
	if _, err := Apply(t.Context(), work, ApplyOptions{Folder: dir, Data: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"private": 0o700, "tool": 0o755, "new": 0o755} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode() != want {
			t.Errorf("%s has mode %v: %v", name, st.Mode(), err)
		}
	}
}

func TestPullLeavesAFolderThatHasChanged(t *testing.T) {
	base, theirs := tree{"a": "1\n", "b": "1\n"}, tree{"a": "2\n", "b": "2\n"}
	dir := t.TempDir()
	ours := tree{"a": "mine\n", "b": "1\n"}
	ours.write(t, dir)
	out, err := Apply(t.Context(), changes(t, base, theirs), ApplyOptions{Folder: dir, Data: t.TempDir(), NoMerge: true})
	if err != nil || out.Changed || out.Conflicts() != 1 {
		t.Errorf("outcome %+v, %v", out, err)
	}
	wantTree(t, "the folder", load(t, dir), ours)
}

type killed string

// runKilled applies and is killed before the nth change of the file system. It reports where.
func runKilled(t *testing.T, o ApplyOptions, work []Change, n int) (at string, ended bool) {
	t.Helper()
	defer func() {
		if k, ok := recover().(killed); ok {
			at = string(k)
		}
	}()
	o.hook = func(what string) {
		if n--; n < 0 {
			panic(killed(what))
		}
	}
	out, err := Apply(t.Context(), work, o)
	if err != nil {
		t.Fatal(err)
	}
	return "", !out.Finished
}

// TestMain keeps temporary folders out of the data folder of the user.
func TestMain(m *testing.M) {
	home, err := os.MkdirTemp("", "edits-")
	if err != nil {
		panic(err)
	}
	// Nothing of the caller's settings counts.
	for name, value := range map[string]string{"AGBOX_HOME": home, "HOME": filepath.Join(home, "nobody"), "XDG_CONFIG_HOME": ""} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}

// elsewhere makes a folder on another file system than t.TempDir.
func elsewhere(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "agbox-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var here, there unix.Stat_t
	if err := errors.Join(unix.Stat(t.TempDir(), &here), unix.Stat(dir, &there)); err != nil || here.Dev == there.Dev {
		t.Fatalf("/dev/shm is no other file system: %v", err)
	}
	return dir
}

func TestAKillAtAnyWriteLeavesNothingHalfApplied(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]func(*testing.T) string{
		"on the same file system": func(t *testing.T) string { return t.TempDir() }, "on another file system": elsewhere,
	} {
		t.Run(name, func(t *testing.T) { killAtAnyWrite(t, data) })
	}
}

func killAtAnyWrite(t *testing.T, data func(*testing.T) string) {
	base := tree{"a": "1\n2\n3\n", "b/c": "x\n", "d": "file\n", "m": "m1\nm2\nm3\n", "old": "renamed\n", "conflict": "c\n"}
	ours := tree{"a": "1\n2\n3\n", "b/c": "x\n", "d": "file\n", "m": "mine\nm2\nm3\n", "old": "renamed\n", "conflict": "o\n"}
	theirs := tree{"a": "x:1\n2\nthree\n", "b": "file\n", "d/e/f": "deep\n", "m": "m1\nm2\ntheirs\n", "new/name": "renamed\n", "conflict": "t\n", "l": "l:a"}
	want, _, _ := brought(t, base, ours, theirs)
	for n := 0; ; n++ {
		dir, kept := t.TempDir(), maps.Clone(base)
		ours.write(t, dir)
		o := ApplyOptions{Folder: dir, Data: data(t), Sandbox: "s", Label: "sandbox", Advance: advance(t, kept)}
		at, ended := runKilled(t, o, changes(t, base, theirs), n)
		if ended {
			if n < 25 {
				t.Errorf("only %d changes of the file system", n)
			}
			return
		}
		journals, err := filepath.Glob(filepath.Join(o.Data, "*", stageName, journalName))
		if err != nil || len(journals) == 0 && !strings.HasPrefix(at, "remove") {
			// Before the journal nothing has changed.
			wantTree(t, fmt.Sprintf("killed before %q, the folder", at), load(t, dir), ours)
		}
		// The next calls finish it, with what counts as changed then; one of them is killed again.
		_, _ = runKilled(t, o, changes(t, kept, theirs), 3)
		for range 2 {
			if _, err := Apply(t.Context(), changes(t, kept, theirs), o); err != nil {
				t.Fatalf("killed before %q: %v", at, err)
			}
		}
		wantTree(t, fmt.Sprintf("killed before %q, the folder", at), load(t, dir), want)
		advanced := maps.Clone(theirs)
		advanced["conflict"] = base["conflict"]
		wantTree(t, fmt.Sprintf("killed before %q, the base", at), kept, advanced)
		if left := besides(t, o.Data); len(left) != 1 || !strings.HasPrefix(filepath.Base(left[0]), "pending-") {
			t.Errorf("killed before %q: %v is left", at, left)
		}
	}
}

// The user cleans the folder after a kill: what that takes out again is not what has come.
func TestWorkThatIsTakenBackAfterAKillComesAgain(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n", "b/c": "x\n", "d": "file\n", "m": "m1\nm2\nm3\n", "old": "renamed\n", "gone": "g\n", "conflict": "c\n"}
	ours := tree{"a": "1\n", "b/c": "x\n", "d": "file\n", "m": "mine\nm2\nm3\n", "old": "renamed\n", "gone": "g\n", "conflict": "o\n"}
	theirs := tree{"a": "x:1\nthree\n", "b": "file\n", "d/e/f": "deep\n", "m": "m1\nm2\ntheirs\n", "new/name": "renamed\n", "conflict": "t\n", "l": "l:a"}
	want, _, _ := brought(t, base, ours, theirs)
	advanced := maps.Clone(theirs)
	advanced["conflict"] = base["conflict"]
	for n, begun := 0, 0; ; n++ {
		dir, kept := t.TempDir(), maps.Clone(base)
		ours.write(t, dir)
		o := ApplyOptions{Folder: dir, Data: t.TempDir(), Sandbox: "s", Label: "sandbox", Advance: advance(t, kept)}
		at, ended := runKilled(t, o, changes(t, base, theirs), n)
		if ended {
			if begun < 10 {
				t.Errorf("%d kills left a journal", begun)
			}
			return
		}
		if journals, err := filepath.Glob(filepath.Join(o.Data, "*", stageName, journalName)); err != nil || len(journals) == 0 || !maps.Equal(kept, base) {
			continue // all came, or nothing
		}
		begun++
		replace(t, dir, ours)
		for range 3 {
			if _, err := Apply(t.Context(), changes(t, kept, theirs), o); err != nil {
				t.Fatalf("killed before %q: %v", at, err)
			}
		}
		wantTree(t, fmt.Sprintf("killed before %q, the folder", at), load(t, dir), want)
		wantTree(t, fmt.Sprintf("killed before %q, the base", at), kept, advanced)
	}
}

// replace gives a folder other content.
func replace(t *testing.T, dir string, content tree) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err != nil {
		t.Fatal(err)
	}
	content.write(t, dir)
}

// eachKill kills a call at each change of the file system, and goes on with after if it has left a journal.
func eachKill(t *testing.T, data func(*testing.T) string, base, ours, theirs tree, after func(at string, o ApplyOptions, kept tree)) {
	t.Helper()
	for n := 0; ; n++ {
		kept := maps.Clone(base)
		o := ApplyOptions{Folder: t.TempDir(), Data: data(t), Sandbox: "s", Label: "sandbox", Advance: advance(t, kept)}
		ours.write(t, o.Folder)
		at, ended := runKilled(t, o, changes(t, base, theirs), n)
		if ended {
			return
		}
		if journals, err := filepath.Glob(filepath.Join(o.Data, "*", stageName, journalName)); err == nil && len(journals) > 0 {
			after(at, o, kept)
		}
	}
}

const longText = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"

func hasMine(t *testing.T, dir string) bool {
	t.Helper()
	return slices.ContainsFunc(slices.Collect(maps.Values(load(t, dir))), func(text string) bool { return strings.Contains(text, "mine") })
}

// The user puts a renamed file back as it was.
func TestARecoveryRemovesNoFileWhoseOtherPathWasTakenBack(t *testing.T) {
	t.Parallel()
	for what, theirs := range map[string]tree{"below": {"a/b": longText, "z": "2\n"}, "beside": {"b": longText, "z": "2\n"}} {
		base, ours := tree{"a": longText, "z": "1\n"}, tree{"a": "mine\n" + longText, "z": "1\n"}
		eachKill(t, func(t *testing.T) string { return t.TempDir() }, base, ours, theirs, func(at string, o ApplyOptions, kept tree) {
			replace(t, o.Folder, ours)
			for range 3 {
				if _, err := Apply(t.Context(), changes(t, kept, theirs), o); err != nil || !hasMine(t, o.Folder) {
					t.Fatalf("%s, killed before %q: %v; the folder has %v", what, at, err, load(t, o.Folder))
				}
			}
		})
	}
}

// besides lists what is kept about folders.
func besides(t *testing.T, data string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(data, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A sandbox may be able to write the folder, as a user with the same id.
func TestAStageInTheFolderIsNeitherBelievedNorInTheWay(t *testing.T) {
	dir := t.TempDir()
	ours := tree{".envrc": "of the user\n", "a": "1\n", ".agbox-apply/1": "hostile\n", ".agbox-apply/journal": ""}
	was := version(ours[".envrc"])
	for _, st := range []step{{Kind: Written, Path: []byte(".envrc"), Old: was, New: version("hostile\n"), Staged: "1"}} {
		raw, err := json.Marshal(journal{Sandbox: "s", Steps: []step{st}})
		if err != nil {
			t.Fatal(err)
		}
		ours[".agbox-apply/journal"] = string(raw)
	}
	ours.write(t, dir)
	if err := os.Chmod(filepath.Join(dir, ".agbox-apply"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := Apply(t.Context(), changes(t, tree{"a": "1\n"}, tree{"a": "2\n", ".agbox-apply/new": "n\n"}), ApplyOptions{Folder: dir, Data: t.TempDir()})
	if err != nil || out.Finished || !out.OldStage {
		t.Errorf("outcome %+v, %v", out, err)
	}
	ours["a"], ours[".agbox-apply/new"] = "2\n", "n\n"
	wantTree(t, "the folder", load(t, dir), ours)
}

// A folder that stands where another one stood gets nothing of what was begun for that.
func TestAStageBelongsToAFolderAndNotToItsPath(t *testing.T) {
	base, theirs := tree{"a": "1\n", "b": "1\n"}, tree{"a": "2\n", "b": "2\n"}
	dir := filepath.Join(t.TempDir(), "folder")
	base.write(t, dir)
	o := ApplyOptions{Folder: dir, Data: t.TempDir(), Sandbox: "s"}
	for n, begun := 0, []string(nil); len(begun) == 0; n++ {
		if _, ended := runKilled(t, o, changes(t, base, theirs), n); ended {
			t.Fatal("no kill left a journal")
		}
		var err error
		if begun, err = filepath.Glob(filepath.Join(o.Data, "*", stageName, journalName)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	base.write(t, dir)
	if out, err := Apply(t.Context(), nil, o); err != nil || out.Finished {
		t.Errorf("the new folder: %+v, %v", out, err)
	}
	wantTree(t, "the new folder", load(t, dir), base)
	o.Folder += "-moved"
	if out, err := Apply(t.Context(), nil, o); err != nil || !out.Finished {
		t.Errorf("the moved folder: %+v, %v", out, err)
	}
	wantTree(t, "the moved folder", load(t, o.Folder), theirs)
}

func TestOneCallAtATimeChangesAFolder(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	release, err := Hold(dir, data, lockName)
	if err != nil {
		t.Fatal(err)
	}
	// Whoever may read the folder can lock it: that is in nobody's way.
	fd, err := unix.Open(dir, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	o := ApplyOptions{Folder: dir, Data: data}
	_, err = Apply(t.Context(), nil, o)
	if want := fmt.Sprintf("process %d, `%s", os.Getpid(), os.Args[0]); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), want) {
		t.Errorf("a held folder: %v, want %s", err, want)
	}
	release()
	if _, err := Apply(t.Context(), nil, o); err != nil {
		t.Errorf("a released folder: %v", err)
	}
}

// An error of the file system names the file.
func TestAFileThatCannotBeReplacedIsNamed(t *testing.T) {
	dir := t.TempDir()
	base := tree{"a": "1\n", "sub/f": "1\n"}
	base.write(t, dir)
	file, err := os.Open(filepath.Join(dir, "sub/f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
		t.Skipf("no file can be made immutable here: %v", err)
	}
	defer func() { _ = unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, 0) }()
	o := ApplyOptions{Folder: dir, Data: t.TempDir()}
	if _, err = Apply(t.Context(), changes(t, base, tree{"a": "2\n", "sub/f": "2\n"}), o); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "sub/f") {
		t.Errorf("the error is %v", err)
	}
}
