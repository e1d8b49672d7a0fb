package edits

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// oracleNewer is what Newer returns of two commits, as git says it.
func (g repository) oracleNewer(was, tip string) map[string]Newer {
	g.t.Helper()
	out := g.must("", "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", was, tip)
	all := make(map[string]Newer)
	err := eachChange([]byte(out), func(name string, two twoEntries) error {
		if two.tip.object != "" && two.tip.mode != "160000" {
			all[name] = Newer{two.tip}
		}
		return nil
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return all
}

// newer compares commits of g, of which the folder has home.
func (g repository) newer(home, since, copied string) (map[string]Newer, error) {
	g.t.Helper()
	return g.pastOf(copied).Newer(g.t.Context(), home, since)
}

// pastOf is the repository of a sandbox, of which files are read.
func (g repository) pastOf(copied string) *History {
	return &History{Copied: copied, Tip: g.head(), Read: func(name string, most int64) ([]byte, error) {
		raw, err := os.ReadFile(filepath.Join(g.dir, name))
		if err != nil || int64(len(raw)) > most {
			return nil, nil //nolint:nilerr // as of a sandbox
		}
		return raw, nil
	}}
}

// rawTree makes a tree of a file with these modes and names, as they are.
func (g repository) rawTree(entries ...string) string {
	g.t.Helper()
	raw, err := hex.DecodeString(strings.TrimSpace(g.must("x\n", "hash-object", "-w", "--stdin")))
	if err != nil {
		g.t.Fatal(err)
	}
	text := ""
	for _, one := range entries {
		text += one + string(raw)
	}
	return strings.TrimSpace(g.must(text, "hash-object", "-w", "-t", "tree", "--stdin", "--literally"))
}

func TestWhatIsNewerInACommitIsWhatGitSays(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		for seed := range uint64(scripts) {
			r := rand.New(rand.NewPCG(seed, 7))
			base := tree{"a": "1\n2\n3\n", "d/b": "1\n", "d/e/c": "1\n", "d.x": "1\n", "l": "l:a", "x": "x:1\n", "new/0": "1\n"}
			t.Setenv("GIT_DEFAULT_HASH", format)
			g := repo(t, base)
			copied, in := g.head(), g.inside()
			module := "160000," + copied + ",mod"
			commits := []string{copied}
			for range 3 {
				base = script(r, base, "sandbox")
				if r.IntN(3) == 0 { // a folder in the place of a file
					delete(base, "a")
					base["a/b"] = "1\n"
				}
				for name := range in.files("HEAD") {
					if err := os.RemoveAll(filepath.Join(in.dir, name)); err != nil {
						t.Fatal(err)
					}
				}
				base.write(t, in.dir)
				in.must("", "add", "-A")
				in.must("", "update-index", "--add", "--cacheinfo", module)
				in.must("", "commit", "-q", "--allow-empty", "-m", "next")
				commits = append(commits, in.head())
			}
			for _, since := range commits {
				found, err := in.newer(g.dir, since, copied)
				if want := in.oracleNewer(since, "HEAD"); err != nil || !reflect.DeepEqual(found, want) {
					t.Errorf("%s, seed %d, since %s: %v\n%v, want\n%v", format, seed, since, err, found, want)
				}
			}
			all, err := in.newer(g.dir, "", "")
			none := strings.TrimSpace(in.must("", "hash-object", "-t", "tree", "/dev/null"))
			if want := in.oracleNewer(none, "HEAD"); err != nil || !reflect.DeepEqual(all, want) {
				t.Errorf("%s, seed %d: %v\n%v, want all:\n%v", format, seed, err, all, want)
			}
		}
	}
}

// looseObjects returns the files of a repository that have one object each.
func (g repository) looseObjects() (all []string) {
	g.t.Helper()
	err := filepath.WalkDir(filepath.Join(g.dir, ".git/objects"), func(name string, d fs.DirEntry, err error) error {
		if dir := filepath.Base(filepath.Dir(name)); err == nil && !d.IsDir() && len(dir) == 2 {
			all = append(all, name)
		}
		return err
	})
	if err != nil || len(all) == 0 {
		g.t.Fatalf("%d objects, %v", len(all), err)
	}
	return all
}

func TestDamagedObjectsSayNothingElse(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n", "d/b": "1\n", "d/e/c": "1\n"}
	g := repo(t, base)
	copied, in := g.head(), g.inside()
	in.commit("two", tree{"a": "2\n", "d/b": "2\n", "d/e/c": "2\n"})
	want := in.oracleNewer(copied, "HEAD")
	r := rand.New(rand.NewPCG(1, 2))
	failed := 0
	for _, name := range in.looseObjects() {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			bad := append([]byte{}, raw...)
			switch r.IntN(3) {
			case 0:
				bad[r.IntN(len(bad))] ^= byte(1 + r.IntN(255))
			case 1:
				bad = bad[:r.IntN(len(bad))]
			default:
				at := r.IntN(len(bad))
				bad = append(append(bad[:at:at], byte(r.IntN(256))), bad[at:]...)
			}
			if err := os.WriteFile(name, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			found, err := in.newer(g.dir, copied, copied)
			if errors.Is(err, ErrUnread) {
				failed++
			} else if err != nil || !reflect.DeepEqual(found, want) {
				t.Fatalf("%v, %v", found, err)
			}
		}
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := func(revision string) string {
		object := strings.TrimSpace(in.must("", "rev-parse", revision))
		return filepath.Join(in.dir, ".git/objects", object[:2], object[2:])
	}
	now := file("HEAD^{tree}")
	tree, err := os.ReadFile(now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(file(copied + "^{tree}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		text []byte
		want error
	}{{other, ErrUnread}, {tree, nil}} {
		if err := os.WriteFile(now, one.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := in.newer(g.dir, copied, copied); !errors.Is(err, one.want) {
			t.Errorf("an object with the name of another one: %v, want %v", err, one.want)
		}
	}
	if found, err := in.newer(g.dir, copied, copied); err != nil || failed == 0 || !maps.Equal(found, want) {
		t.Errorf("%d damages were found, and then %v, %v", failed, found, err)
	}
}

// What a sandbox packs is read only if the folder has it too.
func TestPackedObjectsAreThoseOfTheFolder(t *testing.T) {
	g := repo(t, tree{"a": "1\n", "d/b": "1\n"})
	copied, in := g.head(), g.inside()
	in.commit("two", tree{"d/b": "2\n"})
	in.must("", "repack", "-qad")
	in.must("", "prune-packed")
	if _, err := in.newer(g.dir, copied, copied); !errors.Is(err, ErrUnread) {
		t.Errorf("a packed commit: %v", err)
	}
	if _, err := in.newer(t.TempDir(), copied, copied); !errors.Is(err, ErrUnread) {
		t.Errorf("a folder without a repository: %v", err)
	}
	g.must("", "fetch", "-q", in.dir, "HEAD")
	if found, err := in.newer(g.dir, copied, copied); err != nil || !maps.Equal(found, in.oracleNewer(copied, "HEAD")) {
		t.Errorf("a commit that the folder has fetched: %v, %v", found, err)
	}
}

// Of the base only the sums are known. The commit has such a version if its object says so.
func TestACommitHasAVersionOfWhichTheSumIsKnown(t *testing.T) {
	g := repo(t, tree{"a": "1\n"})
	text := "two\nlines\n"
	pointer := lfsText(&File{Sum: sha256.Sum256([]byte(text)), Size: int64(len(text))})
	copied, in := g.head(), g.inside()
	in.commit("two", tree{"a": text, "x": "x:" + text, "l": "l:" + text, "p": pointer})
	newer, err := in.newer(g.dir, copied, copied)
	if err != nil || len(newer) != 4 {
		t.Fatal(newer, err)
	}
	h := in.pastOf(copied)
	version := func(content string, link, executable bool) *File {
		return &File{Sum: sha256.Sum256([]byte(content)), Size: int64(len(content)), Link: link, Executable: executable}
	}
	check := func(what, name string, f *File, want bool) {
		t.Helper()
		if is, _, err := h.Stored(t.Context(), t.TempDir(), newer[name], f); is != want || err != nil {
			t.Errorf("%s: %t, %v", what, is, err)
		}
	}
	check("the same", "a", version(text, false, false), true)
	check("other ends of lines", "a", version("two\r\nlines\r\n", false, false), true)
	check("another text", "a", version("two\nLines\n", false, false), false)
	check("another mode", "a", version(text, false, true), false)
	check("the same mode", "x", version(text, false, true), true)
	check("no link", "l", version(text, false, false), false)
	check("a link", "l", version(text, true, false), true)
	check("a link with other ends", "l", version("two\r\nlines\r\n", true, false), false)
	check("a content of git-lfs", "p", version(text, false, false), true)
	check("another content of git-lfs", "p", version(text+"\n", false, false), false)
	object := newer["a"].tip.object
	at := filepath.Join(in.dir, ".git/objects", object[:2], object[2:])
	other := newer["p"].tip.object
	raw, err := os.ReadFile(filepath.Join(in.dir, ".git/objects", other[:2], other[2:]))
	if err := errors.Join(err, os.Chmod(at, 0o600), os.WriteFile(at, raw, 0o600)); err != nil {
		t.Fatal(err)
	}
	check("an object with the name of another one", "a", version(pointer, false, false), false)
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	check("no object", "a", version(text, false, false), false)
}

func TestTreesOfASandboxAreReadWithinBounds(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n"})
	copied := g.head()
	for what, object := range map[string]func(in repository) string{
		"a tree of many trees": func(in repository) string { return in.nested(6) },
		"a name with a slash":  func(in repository) string { return in.rawTree("100644 a/b\x00") },
		"a name of above":      func(in repository) string { return in.rawTree("100644 ..\x00") },
		"a name of git":        func(in repository) string { return in.rawTree("100644 .git\x00") },
		"no name":              func(in repository) string { return in.rawTree("100644 \x00") },
		"a mode of no file":    func(in repository) string { return in.rawTree("60644 a\x00") },
		"no mode":              func(in repository) string { return in.rawTree("a\x00") },
		"a name twice":         func(in repository) string { return in.rawTree("100644 a\x00", "100755 a\x00") },
		"half a name": func(in repository) string {
			return strings.TrimSpace(in.must("100644 a\x00short", "hash-object", "-w", "-t", "tree", "--stdin", "--literally"))
		},
		"a path that is too long": func(in repository) string {
			object, kind := strings.TrimSpace(in.must("x\n", "hash-object", "-w", "--stdin")), "100644 blob "
			for range 25 {
				object, kind = strings.TrimSpace(in.must(kind+object+"\t"+strings.Repeat("d", 200)+"\n", "mktree")), "040000 tree "
			}
			return object
		},
		"a file in the place of a tree": func(in repository) string { return in.rawTree("40000 d\x00") },
	} {
		in := g.inside()
		in.onTree(object(in))
		if found, err := in.newer(g.dir, copied, copied); !errors.Is(err, ErrUnread) {
			t.Errorf("%s: %v, %v", what, found, err)
		}
	}
	in := g.inside()
	in.onTree(in.rawTree("100664 a\x00", "160000 mod\x00"))
	if found, err := in.newer(g.dir, copied, copied); err != nil || len(found) != 1 || found["a"].tip.mode != "100644" {
		t.Errorf("an old mode: %v, %v", found, err)
	}
}
