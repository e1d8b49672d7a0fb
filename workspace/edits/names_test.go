package edits

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// strangers are files whose names git refuses, and one that it takes.
func strangers(text string) tree {
	return tree{".gitmodules": "l:a", `.git\x`: text, "d/.git:s": text, ".git::$INDEX_ALLOCATION": text, "d/plain": text}
}

// Git takes files of some names into no tree: they are on no branch, and do not count as brought.
func TestFilesWhoseNamesGitRefusesAreOnNoBranch(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n", "old": "o\n"}
	want := []string{".git::$INDEX_ALLOCATION", `.git\x`, ".gitmodules", "d/.git:s"}
	for _, commits := range []bool{false, true} {
		g := repo(t, base)
		copied, in := g.head(), g.inside()
		if commits {
			in.commit("one", tree{"a": "2\n", ".gitmodules": "m\n"})
		}
		theirs := strangers("evil\n")
		theirs["a"], theirs["d/.git:s"] = "2\n", "o\n" // old, renamed
		o := BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox"}
		branch := tree{"a": "2\n", "d/plain": "evil\n"}
		if commits {
			h := in.history(copied, base)
			h.Copy = h.Base
			o.History, branch[".gitmodules"] = h, "m\n"
		}
		var noted []string
		o.Note = func(out Committed) error { noted = out.Refused; return nil }
		out, err := Commit(t.Context(), changes(t, base, theirs), o)
		if err != nil || len(out.Outside) > 0 || !slices.Equal(out.Refused, want) || !slices.Equal(noted, want) {
			t.Fatalf("%v: outside of git are %q, refused %q, and noted %q", err, out.Outside, out.Refused, noted)
		}
		for _, one := range out.Outcomes {
			if slices.Contains(want, one.Path) {
				t.Errorf("%s counts as brought", one.Path)
			}
		}
		wantTree(t, "the branch", g.files("fix"), branch)
		// They change, and all but a link go away: the branch has nothing of them.
		was, gone := strangers("evil\n"), tree{"d/plain": "evil\n", ".gitmodules": "l:a"}
		for _, later := range []tree{strangers("worse\n"), gone} {
			was["a"], later["a"], later["d/plain"], o.History = "2\n", "2\n", "evil\n", nil
			if out, err := Commit(t.Context(), changes(t, was, later), o); err != nil || out.Commit != "" || len(out.Outcomes) > 0 {
				t.Errorf("%v: %+v", err, out)
			}
		}
		wantTree(t, "the branch", g.files("fix"), branch)
	}
}

func TestFilesWhoseNamesGitRefusesAreInNoPatch(t *testing.T) {
	theirs := strangers("evil\n")
	theirs["a"] = "2\n"
	work := changes(t, tree{"a": "1\n", "b": "l:x", `d/.git\x`: "s\n"}, theirs)
	var patch bytes.Buffer
	refused, err := Patch(t.Context(), work, &patch)
	if want := []string{".git::$INDEX_ALLOCATION", `.git\x`, ".gitmodules", "d/.git:s", `d/.git\x`}; err != nil || !slices.Equal(refused, want) {
		t.Errorf("%v: not in the patch are %q", err, refused)
	}
	var names []string
	for line := range strings.Lines(patch.String()) {
		if name, ok := strings.CutPrefix(line, "diff --git a/"); ok {
			names = append(names, strings.Fields(name)[0])
		}
	}
	if !slices.Equal(names, []string{"a", "b", "d/plain"}) {
		t.Errorf("the patch is of %q", names)
	}
}

// A line of what git prints may be only a part of a path.
func TestAFolderMayHaveLineBreaksInItsPath(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a\nb", "c\n/tmp", "\"d\\\ne\""} {
		// The folder of the repository.
		base := tree{"keep": "1\n", "sub/f": "1\n"}
		g := repo(t, base)
		dir := filepath.Join(t.TempDir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.Rename(g.dir, dir)); err != nil {
			t.Fatal(err)
		}
		g.dir = dir
		copied, in := g.head(), g.inside()
		in.commit("one", tree{"sub/f": "2\n"})
		tree{"new": "n\n"}.write(t, in.dir)
		if out, err := g.bringHistory(in, copied, base); err != nil || len(out.Commits) != 1 {
			t.Errorf("%v: %+v", err, out)
		} else {
			wantTree(t, "the branch", g.files("fix"), tree{"keep": "1\n", "sub/f": "2\n", "new": "n\n"})
		}
		// A folder in it.
		g = repo(t, tree{"a/keep": "1\n", "c/keep": "1\n", "keep": "1\n", name + "/f": "1\n"})
		names := g.must("", "ls-tree", "-r", "-z", "--name-only", "HEAD")
		o := BranchOptions{Folder: filepath.Join(g.dir, name), Branch: "fix", Message: "Work", Label: "sandbox"}
		if _, err := Commit(t.Context(), changes(t, tree{"f": "1\n"}, tree{"f": "2\n", "new": "n\n"}), o); err != nil {
			t.Error(err)
			continue
		}
		got := strings.Split(strings.Trim(g.must("", "ls-tree", "-r", "-z", "--name-only", "fix"), "\x00"), "\x00")
		want := append(strings.Split(strings.Trim(names, "\x00"), "\x00"), name+"/new")
		slices.Sort(want)
		if slices.Sort(got); !slices.Equal(got, want) || g.must("", "show", "fix:"+name+"/f") != "2\n" {
			t.Errorf("the branch has %q", got)
		}
		if names, err := Tracked(t.Context(), o.Folder); err != nil || !slices.Equal(names, []string{"f"}) {
			t.Errorf("git tracks %q: %v", names, err)
		}
	}
}

func TestAFolderAboveAPathIsNotTheRoot(t *testing.T) {
	for name, want := range map[string][]string{"": nil, "a": nil, "a/b/c": {"a/b", "a"}, "/keep": nil, "/a/b": {"/a"}} {
		if got := above(name); !slices.Equal(got, want) {
			t.Errorf("above %q are %q", name, got)
		}
	}
}
