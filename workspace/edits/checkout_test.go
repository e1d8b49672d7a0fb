package edits

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
	work.write(t, in.dir)
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

// Attributes of the workspace that no commit has choose no filter for what the branch has.
func TestAttributesThatAreNotCommittedDoNotSayWhatABranchHas(t *testing.T) {
	first := tree{".gitattributes": "# 0\n", "a": "a\n", "d.txt": "d\n"}
	g := repo(t, first)
	settingsOfUser(t, upperCase)
	copied, in := g.head(), g.inside()
	g.mustBranch(first, tree{".gitattributes": "# 0\n", "a": "a\n", "d.txt": "THREE\n"}) // the user's
	in.commit("one", tree{".gitattributes": "# 1\n", "d.txt": "two\n"})
	work := tree{"a": "a\n", ".gitattributes": "*.txt filter=case\n", "d.txt": "three\n"}
	work.write(t, in.dir)
	h := in.history(copied, work)
	h.Copy = in.history(copied, first).Base
	h.Home = func() (map[string]*File, error) { return h.Copy, nil }
	out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() == 0 {
		t.Errorf("%v: %+v", err, out)
	}
}

// With --squash, no filter runs to see what a branch has that only a commit of the sandbox names.
func TestNoFilterOfTheSandboxRunsForWhatGitHasStoppedTracking(t *testing.T) {
	g := repo(t, tree{"f": "1\n", "a": "a\n"})
	ran := filepath.Join(t.TempDir(), "ran")
	settingsOfUser(t, "[filter \"case\"]\n\tclean = tr a-z A-Z\n\tsmudge = echo ran >>"+ran+"; tr A-Z a-z\n")
	copied, in := g.head(), g.inside()
	base := load(t, in.dir)
	in.commit("one", tree{".gitattributes": "f filter=case\n", "f": "two\n"})
	changes, o := g.fromInside(in, copied, base, "", false)
	if _, err := Commit(t.Context(), changes, o); err != nil {
		t.Fatal(err)
	}
	now := load(t, in.dir)
	in.shell("git rm -q --cached f; git commit -q -m two")
	if err := os.RemoveAll(ran); err != nil {
		t.Fatal(err)
	}
	changes, o = g.fromInside(in, copied, now, "", true)
	out, err := Commit(t.Context(), changes, o)
	if err != nil || len(out.Outcomes) != 1 || out.Outcomes[0].Kind != Refused || !strings.Contains(out.Outcomes[0].Why, "does not track it") {
		t.Errorf("%v: %+v", err, out.Outcomes)
	}
	if text, err := os.ReadFile(ran); err == nil {
		t.Errorf("the filter %s", text)
	}
}
