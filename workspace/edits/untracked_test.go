package edits

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fromInside returns what the client passes of a sandbox: base is what was copied in, and nothing
// was brought since. excluded is a file that the copy leaves out, or "".
func (g repository) fromInside(in repository, copied string, base tree, excluded string, squash bool) ([]Change, BranchOptions) {
	g.t.Helper()
	work := load(g.t, in.dir)
	ignored := func(name string) bool {
		_, err := in.git("", "check-ignore", "-q", name)
		return err == nil && base[name] == ""
	}
	now := maps.Clone(work)
	maps.DeleteFunc(now, func(name, _ string) bool { return ignored(name) })
	o := BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", Copied: copied}
	o.Untracked, o.Fresh = in.untracked(base, now, base)
	all := differences(g.t, base, now)
	switch o.Untrack = in.head() != copied; {
	case squash:
		all = Renames(all)
	case o.Untrack:
		o.History = in.history(copied, base)
		o.History.Copy, o.History.Apart = o.History.Base, make(map[string]bool)
		o.History.Excluded = func(name string) bool { return name == excluded }
		for name := range work {
			o.History.Apart[name] = ignored(name)
		}
	}
	return all, o
}

// untracked returns the files that git does not track in the work tree: of a base, and new ones, with
// whether they were copied in.
func (g repository) untracked(base, work, copied tree) (all map[string]*File, fresh map[string]bool) {
	g.t.Helper()
	all, fresh = make(map[string]*File), make(map[string]bool)
	tracked := strings.Split(g.must("", "ls-files", "-z"), "\x00")
	for name := range work {
		if slices.Contains(tracked, name) {
			continue
		}
		if base[name] != "" {
			all[name] = version(base[name])
		} else {
			fresh[name] = copied[name] != ""
		}
	}
	return all, fresh
}

// retracked adds to changes, as a comparison does, the files that a branch has lost because git did not
// track them in the work tree, and that git tracks now.
func (g repository) retracked(all []Change, base tree, lost map[string]bool) []Change {
	g.t.Helper()
	work, dir := load(g.t, g.dir), g.t.TempDir()
	tracked := strings.Split(g.must("", "ls-files", "-z"), "\x00")
	for name := range lost {
		if work[name] == "" || base[name] == "" || !slices.Contains(tracked, name) {
			continue
		}
		all = slices.DeleteFunc(all, func(c Change) bool { return c.Path == name })
		c := NewChange(dir, name, version(base[name]), version(work[name]))
		c.Retracked = true
		for at, text := range map[string]string{c.BeforeFile(): base[name], c.AfterFile(): work[name]} {
			if err := os.WriteFile(at, []byte(content(text)), 0o600); err != nil {
				g.t.Fatal(err)
			}
		}
		all = append(all, c)
	}
	Sort(all)
	return all
}

// A branch that has lost a file has it again once git tracks it in the sandbox again, changed or not.
// What the user has in its place meanwhile is the user's.
func TestWhatGitTracksAgainIsOnTheBranchAgain(t *testing.T) {
	t.Parallel()
	const ignore = "echo f >.gitignore; git add .gitignore; "
	for _, row := range []struct{ ends, inside, users, commits, squash string }{
		{"", "", "", "1", "1"}, {ignore, "", "own", "1", "1"}, {"", "", "f", "!", "9"},
		{ignore, "echo 2 >f; ", "", "2", "2"}, {"", "echo 2 >f; ", "own", "2", "2"}, {"", "echo 2 >f; ", "f", "!", "!"},
	} {
		for _, squash := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
			t.Run(fmt.Sprint(row, squash), func(t *testing.T) {
				g := repo(t, tree{"f": "1\n", "a": "a\n"})
				copied, in := g.head(), g.inside()
				base, lost := load(t, in.dir), make(map[string]bool)
				bring := func(squash bool) Committed {
					t.Helper()
					changes, o := g.fromInside(in, copied, base, "", squash)
					out, err := Commit(t.Context(), in.retracked(changes, base, lost), o)
					if err != nil {
						t.Fatal(err)
					}
					return out
				}
				in.shell(row.ends + "git rm -q --cached f; git commit -q -m one")
				if out := bring(squash[0]); !slices.Equal(out.Untracked, []string{"f"}) || g.files("fix")["f"] != "" {
					t.Fatalf("the branch has lost %q, and has %q", out.Untracked, g.files("fix"))
				}
				lost["f"] = true
				if row.users != "" {
					g.onNewBranch("fix", row.users, "9")
				}
				in.shell(row.inside + "git add -f f; git commit -q -m two")
				out := bring(squash[1])
				got, want := strings.TrimSpace(g.files("fix")["f"]), row.squash
				if (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
					got = "!"
				}
				if squash == [2]bool{} { // git merges commits of both
					want = row.commits
				}
				if got != want {
					t.Errorf("the branch has %q, want %q: %+v", got, want, out.Outcomes)
				}
			})
		}
	}
}

// What git has stopped tracking stays off the branch also if the branch has it from --squash, if what the
// sandbox has changed in it since is all that is new, and if git ignores it at home. In a step that begins
// with "s:", the work comes with --squash.
func TestWhatCameAndIsNoLongerTrackedIsNotOnTheBranch(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		steps   []string
		outside bool
	}{
		{"new", []string{"s:echo 1 >new; git add new; git commit -q -m one", "git rm -q --cached new; git commit -q -m two; echo 2 >new"}, true},
		{"new", []string{"echo 1 >new", "git add new; git commit -q -m one", "git rm -q --cached new; git commit -q -m two", "echo 2 >new"}, true},
		{"a", []string{"rm a", "echo 1 >a", "s:git rm -q --cached a; git commit -q -m one"}, false},
		{"kept.o", []string{"git add -f kept.o; git commit -q -m one", "git rm -q kept.o; git commit -q -m two"}, false},
	} {
		t.Run(row.steps[0], func(t *testing.T) {
			g := repo(t, tree{"a": "a\n", ".gitignore": "*.o\n"})
			tree{"kept.o": "o\n"}.write(t, g.dir)
			copied, in := g.head(), g.inside()
			base, lost := load(t, in.dir), make(map[string]bool)
			first := version("o\n")
			for i, step := range row.steps {
				script, squash := strings.CutPrefix(step, "s:")
				in.shell(script)
				changes, o := g.fromInside(in, copied, base, "", squash)
				if o.Lost = lost; o.History != nil {
					o.History.Copy = map[string]*File{"a": version("a\n"), ".gitignore": version("*.o\n"), "kept.o": first}
				}
				out, err := Commit(t.Context(), in.retracked(changes, base, lost), o)
				if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
					t.Fatalf("%s: %v: %+v", step, err, out.Outcomes)
				}
				for _, name := range out.Untracked {
					lost[name] = true
				}
				for _, c := range changes {
					if delete(base, c.Path); slices.Contains(out.Outside, c.Path) {
						base[c.Path] = "1\n"
					} else if c.After != nil {
						base[c.Path] = load(t, in.dir)[c.Path]
					}
				}
				if last := i == len(row.steps)-1; last && (g.files("fix")[row.name] != "" || slices.Contains(out.Outside, row.name) != row.outside) {
					t.Errorf("the branch has %q, and outside are %q", g.files("fix"), out.Outside)
				}
			}
		})
	}
}

// Where a file is at home, and what the sandbox does with it, says what a branch has of it: with the
// commits, with --squash, and on a branch that has others. "!" is a conflict, and "-" no file.
func TestABranchHasOfAFileWhatItsSandboxTracks(t *testing.T) {
	t.Parallel()
	const commit = "git commit -q --allow-empty -m one; "
	untrack := "git rm -q --cached f; " + commit
	for _, c := range []struct {
		home, inside           string
		commits, squash, other string
		outside                bool
	}{
		// The folder has the file as it was committed.
		{"", "", "1", "1", "2", false},
		{"", commit, "1", "1", "2", false},
		{"", "echo 3 >f", "3", "3", "!", false},
		{"", "echo 3 >f; git add f; " + commit, "3", "3", "!", false},
		{"", "git rm -q f; " + commit, "-", "-", "!", false},
		{"", "rm f", "-", "-", "!", false},
		{"", "rm f; " + commit, "-", "-", "!", false},
		{"", untrack, "-", "-", "!", false},
		{"", "echo f >.gitignore; git add .; " + untrack, "-", "-", "!", false},
		{"", untrack + "echo 3 >f", "-", "-", "!", true},
		{"", "echo f >.gitignore; git add .; " + untrack + "echo 3 >f", "-", "-", "!", true},
		{"", "echo f >.gitignore; git rm -q --cached f; echo 3 >f", "1", "1", "2", true},
		{"", "git rm -q --cached f", "1", "1", "2", false},
		{"", "git rm -q f; " + commit + "echo 1 >f", "-", "-", "!", false},
		{"", "git rm -q f; " + commit + "echo 1 >f; git add f", "1", "1", "2", false},
		{"", "git rm -q f; " + commit + "echo 3 >f", "-", "-", "!", true},
		{"", "git rm -q f; " + commit + "echo 3 >f; git add f", "3", "3", "!", false},
		{"", untrack + "git add f; " + commit, "1", "1", "2", false},
		{"", "git mv f to; " + commit, "-", "-", "!", false},
		// It has another version.
		{"echo 4 >f", commit, "1", "1", "2", false},
		{"echo 4 >f", "git add f; " + commit, "4", "1", "!", false},
		{"echo 4 >f", untrack, "-", "-", "!", false},
		{"echo 4 >f", untrack + "echo 3 >f", "-", "-", "!", true},
		// It has removed or renamed it, and committed that not, or has not checked it out.
		{"rm f", commit, "1", "1", "2", false},
		{"rm f", "git add -A; " + commit, "-", "1", "!", false},
		{"git rm -q f", commit, "-", "1", "!", false},
		{"mv f to", "git add -A; " + commit, "-", "1", "!", false},
		{"rm f", "git checkout -q f; " + commit, "1", "1", "!", false},
		{"rm f", "git add -A; " + commit + "echo 3 >f", "-", "!", "!", true},
		{"git rm -q f", "echo 3 >f", "!", "!", "!", false},
		{"git sparse-checkout set --no-cone /a", "git rm -q --sparse f; " + commit, "-", "1", "!", false},
		{"git sparse-checkout set --no-cone /a", "git add -A; " + commit, "1", "1", "2", false},
		// The copy leaves it out.
		{"exclude", commit, "1", "1", "2", false},
		{"exclude", "git add -A; " + commit, "1", "1", "2", false},
		{"exclude", untrack, "1", "1", "2", false},
		{"exclude", untrack + "echo 3 >f", "1", "!", "2", true},
		{"exclude", untrack + "echo f >.gitignore; echo 3 >f", "1", "1", "2", false},
		// Git does not track it at home.
		{"git rm -q --cached f; git commit -q --amend -m none", commit, "-", "-", "2", false},
		{"git rm -q --cached f; git commit -q --amend -m none", "echo 3 >f; " + commit, "-", "-", "!", true},
		{"git rm -q --cached f; git commit -q --amend -m none", "git add f; " + commit, "1", "-", "!", false},
		{"git rm -q --cached f; git commit -q --amend -m none", "git add f; " + commit + untrack, "-", "-", "2", false},
	} {
		t.Run(c.home+"|"+c.inside, func(t *testing.T) {
			g := repo(t, tree{"f": "1\n", "a": "a\n"})
			excluded := ""
			if c.home == "exclude" {
				excluded = "f"
			} else {
				g.shell(c.home)
			}
			copied, in := g.head(), g.inside()
			if excluded != "" {
				if err := os.Remove(filepath.Join(in.dir, excluded)); err != nil {
					t.Fatal(err)
				}
			}
			base := load(t, in.dir)
			in.shell(c.inside)
			for _, kind := range []struct{ name, want, file, text string }{
				{"the commits", c.commits, "", ""}, {"the commits, once more", c.commits, "", ""}, {"on a branch with others", c.commits, "own", "o"}, {"on a branch that changed it", c.other, "f", "2"}, {"--squash", c.squash, "", ""},
			} {
				if kind.file != "" {
					g.onNewBranch(copied, kind.file, kind.text)
				}
				changes, o := g.fromInside(in, copied, base, excluded, kind.name == "--squash")
				out, err := Commit(t.Context(), changes, o)
				got := "-"
				if text := g.files(g.tipOrHead())["f"]; text != "" {
					got = strings.TrimSpace(text)
				}
				if (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
					got = "!"
				}
				if err != nil || got != kind.want || kind.want != "!" && slices.Contains(out.Outside, "f") != c.outside {
					t.Errorf("%s: the branch has %q, want %q; outside %q, outcomes %+v, %v", kind.name, got, kind.want, out.Outside, out.Outcomes, err)
				}
				if kind.name != "the commits" && g.tipOf("fix") != "" {
					g.must("", "update-ref", "-d", "refs/heads/fix")
				}
			}
		})
	}
}

// A rewritten history comes as one commit, as with --squash. What a user has on the branch again stays.
func TestWhatGitHasStoppedTrackingIsRemovedOnce(t *testing.T) {
	t.Parallel()
	for _, rewritten := range []bool{false, true} {
		g := repo(t, tree{"f": "1\n", "a": "a\n"})
		copied, in := g.commit("second", tree{"b": "b\n"}), g.inside()
		base := load(t, in.dir)
		in.shell("git rm -q --cached f; git commit -q " + map[bool]string{false: "-m one", true: "--amend -m one"}[rewritten])
		lost := make(map[string]bool)
		bring := func(what string, want tree) {
			t.Helper()
			changes, o := g.fromInside(in, copied, base, "", !rewritten)
			o.Lost = lost
			out, err := Commit(t.Context(), changes, o)
			for _, name := range out.Untracked {
				lost[name] = true
			}
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 || out.Rewritten != rewritten {
				t.Fatalf("%s: %v: %+v", what, err, out)
			}
			wantTree(t, what, g.files("fix"), want)
		}
		bring("at first", tree{"a": "a\n", "b": "b\n"})
		g.onNewBranch("fix", "f", "1")
		bring("after the user has it again", tree{"f": "1\n", "a": "a\n", "b": "b\n"})
	}
}

// The branch has a version that came from the sandbox, by which it stops tracking the file. What git
// stores of that need not be what it would write.
func TestWhatCameFromTheSandboxIsNoConflictWithItsRemoval(t *testing.T) {
	for name, c := range map[string]struct{ attributes, first, now string }{
		"plain":                   {"# none\n", "1\n", "2\n"},
		"ends of lines":           {"* text\n", "1\n", "2\r\n"},
		"ends of lines, mixed":    {"* text\n", "1\n3\n", "2\r\n3\n"},
		"a filter without a back": {"f filter=case\n", "A\n", "bC\n"},
	} {
		play := func(t *testing.T, squash bool) {
			g := repo(t, tree{"f": c.first, "a": "a\n", ".gitattributes": c.attributes})
			settingsOfUser(t, upperCase)
			copied, in := g.head(), g.inside()
			base := load(t, in.dir)
			tree{"f": c.now}.write(t, in.dir)
			now := load(t, in.dir)
			g.mustBranch(base, now)
			in.shell("git rm -q --cached f; git commit -q -m one")
			changes, o := g.fromInside(in, copied, now, "", squash)
			if o.Read = in.history(copied, base).Read; !squash {
				o.History.Copy = in.history(copied, base).Base
			}
			out, err := Commit(t.Context(), changes, o)
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Fatalf("%v: %+v", err, out.Outcomes)
			}
			wantTree(t, "the branch", g.files("fix"), tree{"a": "a\n", ".gitattributes": c.attributes})
		}
		for _, squash := range []bool{false, true} {
			t.Run(fmt.Sprint(name, squash), func(t *testing.T) { play(t, squash) })
		}
	}
}

// A branch loses what git stops tracking also if it had lost and got the file before, by a commit that
// the sandbox has amended since. What the user has there again stays.
func TestABranchLosesAFileAgainThatItHasGotAgain(t *testing.T) {
	t.Parallel()
	for _, users := range []bool{false, true} {
		g := repo(t, tree{"a": "a\n"})
		copied, in := g.head(), g.inside()
		base, lost := load(t, in.dir), make(map[string]bool)
		bring := func() {
			t.Helper()
			changes, o := g.fromInside(in, copied, base, "", false)
			o.Lost = lost
			out, err := Commit(t.Context(), in.retracked(changes, base, lost), o)
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Fatalf("%v: %+v", err, out.Outcomes)
			}
			base, lost = load(t, in.dir), make(map[string]bool)
			for _, name := range out.Untracked {
				lost[name] = true
			}
		}
		in.shell("echo 1 >n; git add n; git commit -q -m one")
		bring()
		in.shell("git rm -q --cached n; git commit -q -m two")
		bring()
		if !lost["n"] || g.files("fix")["n"] != "" {
			t.Fatalf("the branch has %q", g.files("fix"))
		}
		want := ""
		if users {
			g.must("", "checkout", "-q", "fix")
			g.commit("mine", tree{"n": "1\n"})
			g.must("", "checkout", "-q", "main")
			want = "1\n"
		} else {
			in.shell("echo 2 >n; git add n; git commit -q --amend -m two")
			bring()
			if lost["n"] || g.files("fix")["n"] != "2\n" {
				t.Fatalf("the branch has %q", g.files("fix"))
			}
		}
		in.shell("git rm -q --cached --ignore-unmatch n; echo b >b; git add b; git commit -q --amend -m two")
		bring()
		if got := g.files("fix"); got["n"] != want || got["b"] != "b\n" {
			t.Errorf("the user has it again %v: the branch has %q", users, got)
		}
	}
}

// onNewBranch makes the branch fix with a commit above another one, which has another version of a file.
func (g repository) onNewBranch(from, name, text string) {
	g.t.Helper()
	g.shell("export GIT_INDEX_FILE=$PWD/.git/new; git read-tree " + from + "; git update-index --add --cacheinfo 100644,$(echo " + text + " | git hash-object -w --stdin)," + name +
		"; git update-ref refs/heads/fix $(git commit-tree -p " + from + " -m mine $(git write-tree))")
}

// shell runs commands in the work tree.
func (g repository) shell(script string) {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), "sh", "-e", "-c", script)
	cmd.Dir = g.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		g.t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// tipOrHead is the branch fix, or HEAD if there is none.
func (g repository) tipOrHead() string {
	if tip := g.tipOf("fix"); tip != "" {
		return tip
	}
	return "HEAD"
}

// Git commits nothing of a file that it is told not to look at.
func TestFilesThatGitDoesNotLookAtAreToldFromUncommittedOnes(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]bool{
		"echo 2 >f": false,
		"git update-index --skip-worktree f; echo 2 >f":    true,
		"git update-index --assume-unchanged f; echo 2 >f": true,
		"git sparse-checkout set --no-cone /a":             true,
		"git sparse-checkout set --no-cone /f; echo 2 >f":  false,
	} {
		g := repo(t, tree{"f": "1\n", "a": "a\n"})
		g.shell(script)
		base := load(t, g.dir)
		theirs := maps.Clone(base)
		theirs["f"] = "3\n"
		out, err := g.onBranch(base, theirs, BranchOptions{})
		if err != nil || len(out.Outcomes) != 1 || !out.Outcomes[0].InFolder || out.Outcomes[0].Skipped != want {
			t.Errorf("%s: %v: %+v", script, err, out.Outcomes)
		}
	}
}

// Files that git has stopped tracking are found in the commit that was copied, and what is stored
// goes by the attributes of the branch.
func TestUntrackedFilesChangeNoAttributesOfABranch(t *testing.T) {
	g := repo(t, tree{"f": "1\n", ".gitattributes": "*.md text\n"})
	settingsOfUser(t, upperCase)
	copied, in := g.head(), g.inside()
	base := load(t, in.dir)
	in.commit("one", tree{".gitattributes": "*.key filter=case\n*.txt text\n", "f": "1\n", "x.txt": "x\n"})
	in.shell("git rm -q --cached f; git commit -q -m two")
	tree{"a.key": "secret\n", "x.txt": "1\r\n2\r\n"}.write(t, in.dir)
	changes, o := g.fromInside(in, copied, base, "", false)
	out, err := Commit(t.Context(), changes, o)
	if err != nil || len(o.Untracked) != 1 || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		t.Fatalf("%v: %+v", err, out.Outcomes)
	}
	if got := g.files("fix"); got["a.key"] != "SECRET\n" || got["x.txt"] != "1\n2\n" {
		t.Errorf("the branch has %q", got)
	}
}

// What git has stopped tracking comes to a branch with no later call either, also if all commits came
// before, and if the branch has the file from --squash with a line of the user.
func TestWhatIsNoLongerTrackedStaysOutsideInEachCall(t *testing.T) {
	t.Parallel()
	for _, users := range []string{"", "mine\n1\n"} {
		g := repo(t, tree{"a": "a\n"})
		copied, in := g.head(), g.inside()
		base := load(t, in.dir)
		for i, step := range []string{
			"echo 1 >n; git add n; git commit -q -m one", "git rm -q --cached n; echo n >.gitignore; git add .gitignore; git commit -q -m two",
			"echo 2 >>n", "echo 3 >>n", "echo 4 >>n",
		} {
			in.shell(step)
			changes, o := g.fromInside(in, copied, base, "", i == 0)
			out, err := Commit(t.Context(), changes, o)
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Fatalf("%s: %v: %+v", step, err, out.Outcomes)
			}
			outside := slices.Contains(out.Outside, "n")
			if base[".gitignore"] = load(t, in.dir)[".gitignore"]; !outside {
				base["n"] = load(t, in.dir)["n"]
			}
			if i == 0 && users != "" {
				g.must("", "checkout", "-q", "fix")
				g.commit("mine", tree{"n": users})
				g.must("", "checkout", "-q", "main")
			}
			if got := g.files("fix")["n"]; i > 0 && got != users || outside != (i > 1) {
				t.Errorf("%s: the branch has %q, and outside are %q", step, got, out.Outside)
			}
		}
	}
}

// broughtEach returns what the branch has of the file n after each step of a sandbox, which has a copy of the
// folder: the first comes with --squash if that is set.
func (g repository) broughtEach(in repository, squash bool, steps ...string) (had []string) {
	g.t.Helper()
	copied, base := g.head(), load(g.t, in.dir)
	first := in.history(copied, base).Base
	for i, step := range steps {
		in.shell(step)
		changes, o := g.fromInside(in, copied, base, "", squash && i == 0)
		if o.History != nil {
			o.History.Copy = first
		}
		out, err := Commit(g.t.Context(), changes, o)
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			g.t.Fatalf("%s: %v: %+v", step, err, out.Outcomes)
		}
		base = load(g.t, in.dir)
		had = append(had, g.files("fix")["n"])
	}
	return had
}

// A branch loses also what came to it with a merge of the commits of both sides.
func TestABranchLosesWhatCameWithAMerge(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "a\n"})
	in := g.inside()
	g.onNewBranch("main", "b", "b")
	got := g.broughtEach(in, false, "git commit -q --allow-empty -m one; echo 1 >n", "git add n; git commit -q -m two; git rm -q --cached n; git commit -q -m three")
	if !slices.Equal(got, []string{"1\n", ""}) {
		t.Errorf("the branch has %q", got)
	}
}

// A branch has a file that git tracks again in the sandbox also if only commits between had it before.
func TestWhatOnlyEarlierCommitsHadComesOnceItIsTrackedAgain(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{".gitignore": "*.o\n"})
	tree{"kept.o": "1\n"}.write(t, g.dir)
	copied, in := g.head(), g.inside()
	base, lost := load(t, in.dir), make(map[string]bool)
	for i, step := range []string{
		"git add -f kept.o; git commit -q -m one; git rm -q --cached kept.o; git commit -q --allow-empty -m two",
		"git add -f kept.o; git commit -q --amend --allow-empty -m two",
	} {
		in.shell(step)
		changes, o := g.fromInside(in, copied, base, "", false)
		o.Lost = lost
		out, err := Commit(t.Context(), in.retracked(changes, base, lost), o)
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%s: %v: %+v", step, err, out.Outcomes)
		}
		for _, name := range out.Untracked {
			lost[name] = true
		}
		if got, want := g.files("fix")["kept.o"], []string{"", "1\n"}[i]; got != want {
			t.Errorf("%s: the branch has %q", step, got)
		}
	}
}

// What came with --squash is off the branch again also if git stores it here with other ends of lines than
// the commits of the sandbox that had it.
func TestWhatGitStoresOtherwiseIsNoLongerOnTheBranchEither(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "a\n"}, "core.autocrlf=input")
	in := g.inside()
	in.config = "" // it stores the file as it is
	got := g.broughtEach(in, true, "printf '1\\r\\n' >n; git -c core.autocrlf=false add n; git commit -q -m one", "git rm -q --cached n; git commit -q -m two")
	if !slices.Equal(got, []string{"1\n", ""}) {
		t.Errorf("the branch has %q", got)
	}
}

// What the folder had before the sandbox is the user's, also if the sandbox has committed something else
// there and stopped tracking it.
func TestABranchKeepsWhatTheUserCommittedOfAFileThatWasCopied(t *testing.T) {
	g := repo(t, tree{"a": "a\n"})
	tree{"notes": "mine\n"}.write(t, g.dir)
	copied, in := g.head(), g.inside()
	base := load(t, in.dir)
	if base["notes"] != "mine\n" {
		t.Fatalf("the copy is %v", base)
	}
	g.onNewBranch("main", "notes", "mine")
	in.shell("echo other >notes; git add notes; git commit -q -m one; git rm -q --cached notes; git commit -q -m two; echo mine >notes")
	changes, o := g.fromInside(in, copied, base, "", false)
	out, err := Commit(t.Context(), changes, o)
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		t.Fatalf("%v: %+v", err, out.Outcomes)
	}
	if got := g.files("fix")["notes"]; got != "mine\n" {
		t.Errorf("the branch has %q", got)
	}
}

// The limit of paths is one of each call. What a branch has got by several is no reason to refuse the next.
func TestMorePathsThanOneCallMayBringComeBySeveral(t *testing.T) {
	before := maxPaths
	maxPaths = 150
	defer func() { maxPaths = before }()
	g := repo(t, tree{"a": "a\n"})
	tree{"env": "1\n"}.write(t, g.dir) // git does not track it
	copied, in := g.head(), g.inside()
	base := load(t, in.dir)
	for _, step := range []string{"1", "2", "3", "4", "5", "6"} {
		in.shell("for i in $(seq 30); do echo " + step + " >f$i; done; git add f*; git commit -q -m " + step)
		changes, o := g.fromInside(in, copied, base, "", false)
		out, err := Commit(t.Context(), changes, o)
		if err != nil || len(out.Commits) != 1 {
			t.Fatalf("%s: %v: %+v", step, err, out)
		}
		base = load(t, in.dir)
	}
}

// A file that a sandbox has renamed after a branch lost it, because git did not track it there, is a new
// one for the branch.
func TestARenameOfWhatABranchHasLostIsANewFile(t *testing.T) {
	g := repo(t, tree{"f": "1\n", "a": "a\n"})
	copied, in := g.head(), g.inside()
	base, lost := load(t, in.dir), make(map[string]bool)
	for i, step := range []string{"git rm -q --cached f; git commit -q -m one", "mv f g"} {
		in.shell(step)
		changes, o := g.fromInside(in, copied, base, "", i == 1)
		o.Lost = lost
		out, err := Commit(t.Context(), changes, o)
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%s: %v: %+v", step, err, out.Outcomes)
		}
		for _, name := range out.Untracked {
			lost[name] = true
		}
		if got, want := g.files("fix"), []tree{{"a": "a\n"}, {"a": "a\n", "g": "1\n"}}[i]; !maps.Equal(got, want) {
			t.Errorf("%s: the branch has %q", step, got)
		}
	}
}

// A file that the sandbox stops tracking with a commit, and that the folder gets and ignores, does not come
// back to a branch when the sandbox removes it.
func TestWhatWentToTheFolderAndIsRemovedIsNotOnTheBranch(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"f": "1\n", "a": "a\n"})
	copied, in := g.head(), g.inside()
	in.shell("git rm -q --cached f; echo f >.gitignore; git add .gitignore; git commit -q -m one; echo 2 >f")
	base := load(t, in.dir)
	base.write(t, g.dir)
	in.shell("rm f")
	for range 2 {
		changes, o := g.fromInside(in, copied, base, "", false)
		out, err := Commit(t.Context(), changes, o)
		if got := g.files("fix"); err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 || len(out.Outside) > 0 || got["f"] != "" {
			t.Errorf("the branch has %q: %v: %+v", got, err, out)
		}
		delete(base, "f")
	}
}

// A new file in the place of one that the sandbox has removed with a commit, and that git does not track
// there, is outside of git in each call, also if it is a renamed one.
func TestANewFileInThePlaceOfARemovedOneIsOutsideInEachCall(t *testing.T) {
	t.Parallel()
	for _, squashes := range []string{"ccccccc", "sssssss", "scscscs", "cscscsc"} {
		g := repo(t, tree{"f": "1\n", "a": "a\n", "b": "b\n"})
		copied, in := g.head(), g.inside()
		base := load(t, in.dir)
		first := in.history(copied, base).Base
		for i, step := range []string{
			"git rm -q f; git commit -q -m one", "echo 1 >f", "echo 2 >f", "git commit -q --allow-empty -m two", "mv b f",
			"git add f", "git commit -q -m three",
		} {
			in.shell(step)
			changes, o := g.fromInside(in, copied, base, "", squashes[i] == 's')
			outside := i > 0 && i < 5
			if outside {
				o.Fresh["f"] = true
			}
			if o.History != nil {
				o.History.Copy = first
			}
			out, err := Commit(t.Context(), changes, o)
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Fatalf("%s: %v: %+v", step, err, out.Outcomes)
			}
			if base = load(t, in.dir); i < 5 {
				delete(base, "f")
			}
			if got, want := g.files("fix")["f"], []string{"", "", "", "", "", "b\n", "b\n"}[i]; got != want || slices.Contains(out.Outside, "f") != outside {
				t.Errorf("%s, %s: the branch has %q, and outside are %q", step, squashes, got, out.Outside)
			}
			if got := g.files("fix")["b"]; (got == "") != (i > 3) {
				t.Errorf("%s, %s: the branch has %q of b", step, squashes, got)
			}
		}
	}
}

// With --squash, a branch keeps what the user has in the place of such a file, also if the file does not come
// for another reason.
func TestABranchKeepsAFileInThePlaceOfANewOneThatDoesNotCome(t *testing.T) {
	g := repo(t, tree{"f": "1\n", "a": "a\n"})
	copied, in := g.head(), g.inside()
	base := load(t, in.dir)
	delete(base, "f")
	in.shell("git rm -q f; git commit -q -m one; echo 2 >f")
	g.onNewBranch(copied, "f", "9")
	_, o := g.fromInside(in, copied, base, "", true)
	o.Fresh["f"] = true
	out, err := Commit(t.Context(), nil, o)
	if got := g.files("fix")["f"]; err != nil || got != "9\n" || len(out.Outcomes) > 0 {
		t.Errorf("the branch has %q: %v: %+v", got, err, out)
	}
}

// A file that git does not track at home, and that the sandbox renames to one that is ignored and adds by
// force, is on a branch as any other that it adds.
func TestARenamedFileThatIsIgnoredAndTrackedIsOnTheBranch(t *testing.T) {
	g := repo(t, tree{"a": "a\n", ".gitignore": "*.o\n"})
	tree{"notes": "1\n"}.write(t, g.dir)
	copied, in := g.head(), g.inside()
	base := load(t, in.dir)
	in.shell("mv notes notes.o; git add -f notes.o")
	now := load(t, in.dir)
	changes := Renames(differences(t, base, now))
	for i := range changes {
		changes[i].Tracked = changes[i].Path == "notes.o"
	}
	out, err := Commit(t.Context(), changes, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", Copied: copied})
	if got := g.files("fix")["notes.o"]; err != nil || got != "1\n" || !slices.Equal(out.Outside, []string{"notes"}) {
		t.Errorf("the branch has %q: %v: %+v", got, err, out)
	}
}

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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
