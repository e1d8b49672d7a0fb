package edits

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// strangers are files whose names git refuses, and one that it takes.
func strangers(text string) tree {
	return tree{".gitmodules": "l:a", ".git ": text, "d/.git.": text, ".git::$INDEX_ALLOCATION": text, "d/plain": text}
}

// Git takes files of some names into no tree: they are on no branch, and do not count as brought.
func TestFilesWhoseNamesGitRefusesAreOnNoBranch(t *testing.T) {
	base := tree{"a": "1\n", "old": "o\n"}
	want := []string{".git ", ".git::$INDEX_ALLOCATION", ".gitmodules", "d/.git."}
	for _, commits := range []bool{false, true} {
		g := repo(t, base)
		copied, in := g.head(), g.inside()
		if commits {
			in.commit("one", tree{"a": "2\n", ".gitmodules": "m\n"})
		}
		theirs := strangers("evil\n")
		theirs["a"], theirs["d/.git."] = "2\n", "o\n" // old, renamed
		o := BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox"}
		branch := tree{"a": "2\n", "d/plain": "evil\n"}
		if commits {
			h := in.history(copied, base)
			h.Copy = h.Base
			o.History, branch[".gitmodules"] = h, "m\n"
		}
		var noted []string
		o.Note = func(out Committed) error { noted = out.Outside; return nil }
		out, err := Commit(t.Context(), changes(t, base, theirs), o)
		if err != nil || !slices.Equal(out.Outside, want) || !slices.Equal(noted, want) {
			t.Fatalf("%v: outside of git are %q, and noted %q", err, out.Outside, noted)
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
	work := changes(t, tree{"a": "1\n", "b": "l:x", "d/.git ": "s\n"}, theirs)
	var patch bytes.Buffer
	refused, err := Patch(t.Context(), work, &patch)
	if want := []string{".git ", ".git::$INDEX_ALLOCATION", ".gitmodules", "d/.git ", "d/.git."}; err != nil || !slices.Equal(refused, want) {
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
