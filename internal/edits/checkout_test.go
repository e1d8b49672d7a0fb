package edits

import "testing"

// Of a file behind a filter that only commits of the sandbox name, a branch that is not the folder
// keeps what came to branches only, whatever the sandbox has committed of it meanwhile.
func TestWhatWentToBranchesOnlyStaysBehindANewFilter(t *testing.T) {
	first := tree{"d.txt": "d\n", "b": "b\n"}
	g := repo(t, first)
	settingsOfUser(t, upperCase)
	copied, in := g.head(), g.inside()
	work := tree{".gitattributes": "*.txt filter=case\n", "d.txt": "two\n", "b": "b\n"}
	g.mustBranch(first, tree{".gitattributes": work[".gitattributes"], "d.txt": "d\n", "b": "b\n"})
	g.mustBranch(tree{"d.txt": "d\n", "b": "b\n", ".gitattributes": work[".gitattributes"]}, work)
	if got := g.files("fix")["d.txt"]; got != "TWO\n" {
		t.Fatalf("the branch has %q", got)
	}
	in.commit("one", tree{".gitattributes": work[".gitattributes"], "d.txt": "three\n"})
	h := in.history(copied, work)
	h.Copy = in.history(copied, first).Base
	h.Home = func() (map[string]*File, error) { return h.Copy, nil }
	out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		t.Fatalf("%v: %+v", err, out.Outcomes)
	}
	if got := g.files("fix")["d.txt"]; got != "TWO\n" {
		t.Errorf("the branch has %q", got)
	}
}
