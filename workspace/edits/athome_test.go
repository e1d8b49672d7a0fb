package edits

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What came to the folder before is named if the branch has something else, as git stores it.
func TestWhatTheFolderHasAlreadyAndTheBranchHasNotIsNamed(t *testing.T) {
	for _, prefix := range []string{"", "sub"} {
		in := func(files tree) tree {
			all := make(tree)
			for name, text := range files {
				all[filepath.Join(prefix, name)] = text
			}
			return all
		}
		g := repo(t, in(tree{".gitignore": "*.log\n", ".gitattributes": "*.txt text\n", "a": "1\n", "c.txt": "1\n2\n", "d.txt": "1\n", "gone": "g\n", "l": "l:a", "on": "1\n", "x": "1\n", "y": "1\n"}))
		base := tree{"a": "1\n", "c.txt": "1\n2\n", "d.txt": "1\r\n", "gone": "g\n", "l": "l:a", "on": "1\n", "x": "1\n", "y": "1\n", "i.log": "1\n"}
		now := tree{"a": "2\n", "c.txt": "1\r\n2\n", "d.txt": "2\r\n", "l": "l:b", "on": "1\n", "x": "2\n", "y": "2\n", "i.log": "2\n", "new": "n\n"}
		for _, name := range []string{"gone", "l"} {
			if err := os.Remove(filepath.Join(g.dir, prefix, name)); err != nil {
				t.Fatal(err)
			}
		}
		in(now).write(t, g.dir)
		in(tree{"x": "gone on\n"}).write(t, g.dir)
		more := differences(t, now, tree{"a": "2\n", "c.txt": "1\r\n2\n", "d.txt": "2\r\n", "l": "l:b", "on": "2\n", "x": "2\n", "y": "3\n", "i.log": "2\n", "new": "n\n"})
		more = slices.DeleteFunc(more, func(c Change) bool { return c.Path == "y" })
		out, err := Commit(t.Context(), more, BranchOptions{Folder: filepath.Join(g.dir, prefix), Branch: "fix", Message: "Work", Label: "sandbox", AtHome: differences(t, base, now)})
		if want := []string{"a", "d.txt", "gone", "l", "new", "y"}; err != nil || !slices.Equal(out.AtHome, want) {
			t.Errorf("in %q: %v: %q, want %q", prefix, err, out.AtHome, want)
		}
		if out.Commit == "" {
			t.Error("there is no commit")
		}
	}
}
