package edits

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What came to a branch without the commits of the sandbox, and the user has changed there, a
// commit of the same does not bring again.
func TestACommitOfWhatTheBranchHadTurnsNothingBack(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n2\n3\n4\n5\n", "gone": "g\n"}
	for _, more := range []bool{false, true} {
		g := repo(t, base)
		copied, in := g.head(), g.inside()
		in.commit("one", tree{"a": "1\ntheirs\n2\n3\n4\n5\n", "gone": ""})
		theirs := load(t, in.dir)
		g.mustBranch(base, theirs)
		g.must("", "checkout", "-q", "fix")
		g.commit("mine", base) // as it was
		g.must("", "checkout", "-q", "main")
		want := tree{"a": "1\n2\n3\n4\n5\n", "gone": "g\n"}
		if more {
			in.commit("two", tree{"a": "1\ntheirs\n2\n3\n4\nfive\n"})
			want["a"] = "1\n2\n3\n4\nfive\n"
		}
		if out, err := g.bringHistory(in, copied, theirs); err != nil || len(out.Commits) == 0 {
			t.Fatalf("%v: %+v", err, out)
		}
		wantTree(t, "the branch", g.files("fix"), want)
	}
}

// The branch has an older version of the sandbox: what came last went to the folder.
func TestAnOlderVersionOfTheSandboxOnABranchIsNamed(t *testing.T) {
	t.Parallel()
	one, two, first := tree{"a": "one\n", "b": "b\n"}, tree{"a": "two\n", "b": "b\n"}, tree{"a": "a\n", "b": "b\n"}
	for _, toFolder := range []bool{true, false} {
		g := repo(t, first)
		copied, in := g.head(), g.inside()
		g.mustBranch(first, one)
		g.mustBranch(one, two)
		in.commit("as before", one)
		h := in.history(copied, one)
		h.Copy = in.history(copied, first).Base
		h.Home = func() (map[string]*File, error) {
			if toFolder {
				return h.Base, nil
			}
			return h.Copy, nil
		}
		out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
		if err != nil {
			t.Fatal(err)
		}
		if !toFolder {
			if (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Errorf("the branch has got the version last: %+v", out.Outcomes)
			}
			continue
		}
		if len(out.Outcomes) != 1 || out.Outcomes[0].Path != "a" || out.Outcomes[0].Kind != Refused || out.Commit != "" {
			t.Errorf("the outcome is %+v", out)
		}
		wantTree(t, "the branch", g.files("fix"), two)
	}
}

// The same if the sandbox has gone back to what was copied: the branch has a version from in between.
func TestAVersionOnABranchThatTheSandboxTookBackIsNamed(t *testing.T) {
	t.Parallel()
	first, two := tree{"a": "a\n", "b": "b\n"}, tree{"a": "two\n", "b": "b\n", "new": "n\n"}
	for name, also := range map[string]tree{"": nil, "and back on the branch": first, "and otherwise by the user": {"a": "mine\n", "b": "b\n", "new": "mine\n"}} {
		g := repo(t, first)
		copied, in := g.head(), g.inside()
		g.mustBranch(first, two)
		if also != nil {
			g.mustBranch(two, also)
			if name == "and back on the branch" {
				g.mustBranch(first, two) // the user wants it
			}
		}
		in.commit("two", two)
		in.commit("back", tree{"a": "a\n", "b": "b\n", "new": ""})
		h := in.history(copied, first)
		h.Copy = h.Base
		h.Home = func() (map[string]*File, error) { return h.Base, nil }
		out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
		if err != nil {
			t.Fatal(err)
		}
		if also != nil {
			if len(out.Outcomes) > 0 || out.Commit == "" {
				t.Errorf("%s: the outcome is %+v", name, out)
			}
			continue
		}
		if len(out.Outcomes) != 2 || out.Outcomes[0].Path != "a" || out.Outcomes[1].Path != "new" || out.Outcomes[0].Kind != Refused || out.Commit != "" {
			t.Errorf("the outcome is %+v", out)
		}
		wantTree(t, "the branch", g.files("fix"), two)
	}
}

// What the sandbox takes back may be attributes, or have a name that is magic to git.
func TestAttributesAndMagicNamesThatTheSandboxTookBackAreNamed(t *testing.T) {
	t.Parallel()
	for _, path := range []string{".gitattributes", ":!x", ":(top)x", "*"} {
		t.Run(path, func(t *testing.T) {
			first, two := tree{path: "*.x text\n", "b": "b\n"}, tree{path: "*.y text\n", "b": "b\n"}
			g := repo(t, first)
			copied, in := g.head(), g.inside()
			g.mustBranch(first, two)
			in.commit("two", two)
			in.commit("back", first)
			h := in.history(copied, first)
			h.Copy = h.Base
			h.Home = func() (map[string]*File, error) { return h.Base, nil }
			out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
			if err != nil || len(out.Outcomes) != 1 || out.Outcomes[0].Path != path || out.Outcomes[0].Kind != Refused {
				t.Errorf("%v: %+v", err, out)
			}
		})
	}
}

// A version of another mode is another version.
func TestAModeThatABranchHadNotComesToIt(t *testing.T) {
	t.Parallel()
	first, work, run := tree{"a": "a\n", "b": "b\n"}, tree{"a": "work\n", "b": "b\n"}, tree{"a": "x:work\n", "b": "b\n"}
	g := repo(t, first)
	copied, in := g.head(), g.inside()
	g.mustBranch(first, work)
	g.mustBranch(work, first)
	in.commit("one", run)
	if _, err := g.bringHistory(in, copied, run); err != nil {
		t.Fatal(err)
	}
	if got := g.must("", "ls-tree", "fix", "a"); !strings.HasPrefix(got, "100755") || g.files("fix")["a"] != "work\n" {
		t.Errorf("the branch has %q", got)
	}
}

// What came is still the sandbox's version if it has the mode that the user had given the file.
func TestACommitTurnsNothingBackInAFileOfAnotherMode(t *testing.T) {
	t.Parallel()
	const first, came = "1\n2\n3\n4\n5\n", "1\ntheirs\n2\n3\n4\n5\n"
	for what, modes := range map[string][2]string{"made executable": {"", "x:"}, "made plain": {"x:", ""}} {
		for _, more := range []bool{false, true} {
			his, mine := modes[0], modes[1]
			base, work := tree{"a": his + first}, tree{"a": his + came}
			g := repo(t, base)
			copied, in := g.head(), g.inside()
			user := func(text string) {
				g.must("", "checkout", "-q", "-B", "fix", g.tipOrHead())
				g.commit("mine", tree{"a": mine + text})
				g.must("", "checkout", "-q", "main")
			}
			user(first)
			g.mustBranch(base, work)
			user(first)
			in.commit("one", work)
			want := first
			if more {
				tree{"a": his + "1\ntheirs\n2\n3\n4\nfive\n"}.write(t, in.dir)
				want = "1\n2\n3\n4\nfive\n"
			}
			if out, err := g.bringHistory(in, copied, work); err != nil || len(out.Commits) == 0 {
				t.Fatalf("%s, more %v: %v: %+v", what, more, err, out)
			}
			wantTree(t, "the branch, "+what, g.files("fix"), tree{"a": want})
			if got := g.executables("fix") != ""; got != (mine == "x:") {
				t.Errorf("%s, more %v: the file is executable on the branch: %v", what, more, got)
			}
		}
	}
}

// The user's own commits may change any number of files.
func TestABranchOfVeryManyFilesIsJoined(t *testing.T) {
	t.Parallel()
	base := tree{"a": "a\n"}
	g := repo(t, base)
	copied, in := g.head(), g.inside()
	in.commit("one", tree{"a": "changed\n"})
	g.must("", "checkout", "-q", "--detach")
	g.onTree(g.nested(6))
	g.onTree(strings.TrimSpace(g.must("", "rev-parse", "HEAD~:")))
	g.must("", "branch", "fix")
	g.must("", "checkout", "-q", "main")
	if _, err := g.bringHistory(in, copied, base); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), tree{"a": "changed\n"})
}

// What was not committed when it was copied in is the sandbox's once it has committed it. The
// branch may be older than what was copied in.
func TestACommitThatJoinsHasAllOfTheSandboxsCommits(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n", "dirty": "1\n", "both": "1\n2\n3\n4\n5\n", ".gitignore": "dist/\n"})
	g.must("", "checkout", "-q", "-b", "fix")
	g.commit("mine", tree{"own": "o\n", "both": "one\n2\n3\n4\n5\n"})
	g.must("", "checkout", "-q", "main")
	copied := g.commit("of main", tree{"later": "l\n"})
	tree{"dirty": "2\n", "notes": "n\n", "left": "x\n", "dist/x.js": "1\n"}.write(t, g.dir)
	base := load(t, g.dir)
	in := g.inside()
	in.commit("one", tree{"dirty": "3\n", "both": "1\n2\n3\n4\nfive\n", "dist/x.js": "2\n"})
	tree{"a": "2\n"}.write(t, in.dir)
	out, err := g.bringHistory(in, copied, base)
	if err != nil || len(out.Outside) > 0 {
		t.Fatalf("%v: %+v", err, out)
	}
	wantTree(t, "the branch", g.files("fix"), tree{"a": "2\n", "dirty": "3\n", "both": "one\n2\n3\n4\nfive\n", ".gitignore": "dist/\n", "own": "o\n", "later": "l\n", "notes": "n\n", "left": "x\n", "dist/x.js": "2\n"})
}

// A line that was not committed when it was copied is on the branch, or named, once the sandbox commits it,
// also in a file that --squash has renamed, and that a filter of the sandbox's attributes stores.
func TestALineOfACommitIsNotLostBehindANewFilter(t *testing.T) {
	for _, commits := range []bool{false, true} { // the rename is brought as it is committed
		g := repo(t, tree{"f": "1\n2\n3\n"})
		settingsOfUser(t, upperCase)
		copied := g.head()
		first := tree{"f": "1\nmine\n3\n"}
		first.write(t, g.dir)
		in := g.inside()
		in.config = filepath.Join(os.Getenv("HOME"), ".gitconfig")
		bring := func(base tree, squash bool) []Outcome {
			t.Helper()
			changes, o := g.fromInside(in, copied, base, "", squash)
			if o.History != nil {
				o.History.Copy = in.history(copied, first).Base
			}
			out, err := Commit(t.Context(), changes, o)
			if err != nil {
				t.Fatal(err)
			}
			return out.Outcomes
		}
		g.onNewBranch("main", "f", "'0\n1\n2\n3'")
		in.shell("echo '* filter=case' >.gitattributes; mv f n")
		if commits {
			in.shell("git add -A; git commit -q -m one")
		}
		bring(first, true)
		if got := strings.ToLower(g.files("fix")["n"]); got != "0\n1\n2\n3\n" {
			t.Fatalf("the branch has %q", got)
		}
		in.shell("git add -A; git commit -q --allow-empty -m two")
		out := bring(load(t, in.dir), false)
		if got := g.files("fix")["n"]; !strings.Contains(strings.ToLower(got), "mine") && (Applied{Outcomes: out}).Conflicts() == 0 {
			t.Errorf("committed before %v: the branch has %q, and the outcomes are %+v", commits, got, out)
		}
	}
}

// A file that came with --squash is no conflict with the commit that has it with another mode, if git stores
// it here with other ends of lines than the sandbox.
func TestAFileOfBothWaysIsNoConflictIfGitStoresItAsTheBranchHasIt(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "a\n"}, "core.autocrlf=input")
	copied, in := g.head(), g.inside()
	in.config = "" // it stores the file as it is
	base := load(t, in.dir)
	in.commit("one", tree{"n": "1\r\n"})
	if err := os.Chmod(filepath.Join(in.dir, "n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, squash := range []bool{true, false} {
		changes, o := g.fromInside(in, copied, base, "", squash)
		out, err := Commit(t.Context(), changes, o)
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%v: %+v", err, out.Outcomes)
		}
		base = load(t, in.dir)
		if got := g.files("fix")["n"]; got != "1\n" || g.executables("fix") != "n" {
			t.Errorf("the branch has %q, and the executables are %q", got, g.executables("fix"))
		}
	}
}

// A merge that brought a commit of the sandbox shows what this has, which is no newer version.
func TestAnOlderVersionOfTheSandboxIsNamedAfterAMergeToo(t *testing.T) {
	t.Parallel()
	first, one, two := tree{"a": "a\n"}, tree{"a": "one\n"}, tree{"a": "two\n"}
	g := repo(t, first)
	copied, in := g.head(), g.inside()
	g.onNewBranch("main", "mine", "mine")
	in.commit("one", one)
	if _, err := g.bringHistory(in, copied, one); err != nil {
		t.Fatal(err)
	}
	two.write(t, in.dir)
	if _, err := g.bringHistory(in, copied, one); err != nil {
		t.Fatal(err)
	}
	in.commit("two", two)
	in.commit("one again", one)
	h := in.history(copied, one) // which went to the folder
	h.Copy = in.history(copied, first).Base
	h.Home = func() (map[string]*File, error) { return h.Base, nil }
	out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil || len(out.Outcomes) != 1 || out.Outcomes[0].Kind != Refused || out.Commit != "" {
		t.Errorf("%v: the outcome is %+v", err, out)
	}
	if got := g.files("fix")["a"]; got != "two\n" {
		t.Errorf("the branch has %q", got)
	}
}

// What came to the folder before is named if the branch has something else, as git stores it.
func TestWhatTheFolderHasAlreadyAndTheBranchHasNotIsNamed(t *testing.T) {
	t.Parallel()
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
