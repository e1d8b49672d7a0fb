package edits

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// executables are the files of a commit that git takes for executable.
func (g repository) executables(commit string) string {
	g.t.Helper()
	var all []string
	for line := range strings.Lines(g.must("", "ls-tree", "-r", commit)) {
		if meta, name, _ := strings.Cut(strings.TrimSpace(line), "\t"); strings.HasPrefix(meta, "100755") {
			all = append(all, name)
		}
	}
	return strings.Join(all, " ")
}

// modeless makes a repository whose git does not look at modes: a, b and c are executable in the
// folder, and only c in git.
func modeless(t *testing.T) (g repository, base tree) {
	t.Helper()
	g = repo(t, tree{"a": "1\n2\n3\n", "b": "b\n", "c": "x:c\n", "d": "d\n", "e": "e\n"}, "core.fileMode=false")
	g.must("", "update-index", "--chmod=+x", "c")
	g.must("", "commit", "-q", "-m", "executable")
	for _, name := range []string{"a", "b"} {
		if err := os.Chmod(filepath.Join(g.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return g, load(t, g.dir)
}

// Modes that git takes no notice of in the folder come to no branch, and are no conflict.
func TestModesThatGitDoesNotLookAtStayOutOfABranch(t *testing.T) {
	g, base := modeless(t)
	g.mustBranch(base, tree{"a": "x:1\n2\nthree\n", "c": "x:more\n", "d": "x:d\n", "e": "e\n", "new": "x:n\n"})
	wantTree(t, "the branch", g.files("fix"), tree{"a": "1\n2\nthree\n", "c": "more\n", "d": "d\n", "e": "e\n", "new": "n\n"})
	if got := g.executables("fix"); got != "c d new" {
		t.Errorf("executable are %q", got)
	}
}

// The same for commits of the sandbox: all that it has committed needs no commit more.
func TestModesThatGitDoesNotLookAtAddNoCommit(t *testing.T) {
	g, base := modeless(t)
	copied, in := g.head(), g.inside()
	bring := func(base tree) (*History, Committed) {
		t.Helper()
		h := in.history(copied, base)
		h.Copy = in.history(copied, load(t, g.dir)).Base
		out, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%v: %+v", err, out.Outcomes)
		}
		return h, out
	}
	in.commit("one", tree{"a": "x:1\n2\nthree\n", "c": ""})
	if h, out := bring(base); out.Commit != h.Tip {
		t.Errorf("the branch has a commit more: %s", g.must("", "log", "--format=%s", "--raw", "main..fix"))
	}
	// The workspace has what was copied again, and a mode that the sandbox has set.
	base = load(t, in.dir)
	in.commit("two", tree{"a": "x:1\n2\nfour\n"})
	base["a"] = "x:1\n2\n3\n"
	tree{"a": "x:1\n2\n3\n"}.write(t, in.dir)
	if err := os.Chmod(filepath.Join(in.dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	bring(base)
	wantTree(t, "the branch", g.files("fix"), tree{"a": "1\n2\n3\n", "b": "b\n", "d": "d\n", "e": "e\n"})
	if got := g.executables("fix"); got != "d" {
		t.Errorf("executable are %q", got)
	}
	// The branch has commits of its own.
	base = load(t, in.dir)
	g.must("", "checkout", "-q", "-f", "fix")
	g.commit("mine", tree{"mine": "m\n"})
	g.must("", "update-index", "--chmod=+x", "e")
	g.must("", "commit", "-q", "-m", "executable")
	g.must("", "checkout", "-q", "-f", "main")
	in.commit("three", tree{"a": "x:one\n2\n3\n", "e": "more\n"})
	tree{"b": "x:more\n"}.write(t, in.dir)
	bring(base)
	wantTree(t, "the branch", g.files("fix"), tree{"a": "one\n2\n3\n", "b": "more\n", "d": "d\n", "e": "more\n", "mine": "m\n"})
	if got := g.executables("fix"); got != "d e" {
		t.Errorf("executable are %q", got)
	}
}

// Nor do those of a file that a branch has lost and git tracks again in the sandbox.
func TestModesThatGitDoesNotLookAtDoNotComeWithWhatItTracksAgain(t *testing.T) {
	for _, squash := range []bool{false, true} {
		g, base := modeless(t)
		copied, in := g.head(), g.inside()
		lost := make(map[string]bool)
		for _, script := range []string{"git rm -q --cached a c", "git add a c; git update-index --chmod=+x c"} {
			in.shell("git reset -q --soft " + copied + "; " + script + "; git commit -q --allow-empty -m one")
			changes, o := g.fromInside(in, copied, base, "", squash)
			out, err := Commit(t.Context(), in.retracked(changes, base, lost), o)
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Fatalf("%v: %+v", err, out.Outcomes)
			}
			for _, name := range out.Untracked {
				lost[name] = true
			}
		}
		if got := g.executables("fix"); len(lost) != 2 || got != "c" {
			t.Errorf("with --squash %v: %v are lost, and executable are %q", squash, lost, got)
		}
	}
}

// Nor are they a change by the branch of a file that came and that git has stopped tracking since.
func TestModesThatGitDoesNotLookAtKeepNoFileThatGitStoppedTracking(t *testing.T) {
	g, base := modeless(t)
	copied, in := g.head(), g.inside()
	tree{"a": "x:1\n2\nthree\n"}.write(t, in.dir)
	g.mustBranch(base, load(t, in.dir))
	in.shell("git rm -q --cached a; git commit -q -m one")
	changes, o := g.fromInside(in, copied, load(t, in.dir), "", true)
	out, err := Commit(t.Context(), changes, o)
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 || g.files("fix")["a"] != "" {
		t.Errorf("%v: %+v, and the branch has %q", err, out.Outcomes, g.files("fix"))
	}
}

// What one side has of a file in the mode of the other one is no change.
func TestTheModeOfTheOtherSideIsNoChange(t *testing.T) {
	for _, row := range []struct{ ours, theirs string }{{"x:2\n", "2\n"}, {"x:9\n", "x:1\n"}} {
		g := repo(t, tree{"f": "1\n"})
		base := load(t, g.dir)
		g.mustBranch(base, tree{"f": row.ours})
		tip := g.tipOf("fix")
		if out := g.mustBranch(base, tree{"f": row.theirs}); out.Commit != "" || g.tipOf("fix") != tip {
			t.Errorf("%q is on the branch, and %q makes a commit: %+v", row.ours, row.theirs, out.Outcomes)
		}
	}
}

// A commit has a line that was not committed when it was copied, and a mode that the sandbox has taken back
// since: the line comes.
func TestAModeThatIsTakenBackLeavesTheLinesOfItsCommit(t *testing.T) {
	for n := range 4 {
		users, end := n%2 > 0, []string{"\n", "\r\n"}[n/2] // the branch has a commit of the user; git converts
		g := repo(t, tree{".gitattributes": map[string]string{"\r\n": "f text eol=crlf\n"}[end], "f": "1\n2\n3\n4\n", "a": "a\n"})
		copied := g.head()
		tree{"f": strings.ReplaceAll("1\nmine\n3\n4\n", "\n", end)}.write(t, g.dir)
		in := g.inside()
		base := load(t, in.dir)
		in.shell("chmod +x f; git commit -q -a -m one; chmod -x f")
		if users {
			g.onNewBranch("main", "b", "b")
		}
		changes, o := g.fromInside(in, copied, base, "", false)
		out, err := Commit(t.Context(), changes, o)
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%v: %+v", err, out.Outcomes)
		}
		if got := g.files("fix")["f"]; got != "1\nmine\n3\n4\n" || strings.Contains(g.executables("fix"), "f") {
			t.Errorf("the branch has %q, and the executables are %q", got, g.executables("fix"))
		}
	}
}

// A mode that a commit of the sandbox sets comes with it, also if the branch goes on by itself.
func TestAModeThatACommitSetsComesToABranch(t *testing.T) {
	g, base := modeless(t)
	copied, in := g.head(), g.inside()
	g.must("", "checkout", "-q", "-b", "fix")
	g.commit("user", tree{"e": "user\n"})
	g.must("", "checkout", "-q", "-f", "main")
	in.must("", "update-index", "--chmod=+x", "d")
	in.must("", "commit", "-q", "-m", "one")
	h := in.history(copied, base)
	h.Copy = h.Base
	if _, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h}); err != nil {
		t.Fatal(err)
	}
	if got := g.executables("fix"); got != "c d" {
		t.Errorf("executable are %q", got)
	}
}
