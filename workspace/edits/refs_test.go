package edits

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A branch that stands for another one would move that, also if it is checked out.
func TestABranchThatIsASymbolicReferenceIsRefused(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n"}
	for _, to := range []string{"main", "other", "none"} {
		g := repo(t, base)
		g.must("", "branch", "other")
		g.must("", "symbolic-ref", "refs/heads/fix", "refs/heads/"+to)
		refs := g.must("", "for-each-ref")
		if out, err := g.onBranch(base, tree{"a": "2\n"}, BranchOptions{}); err == nil || !strings.Contains(err.Error(), "symbolic reference to refs/heads/"+to) {
			t.Errorf("to %s: %v %+v", to, err, out)
		}
		if got := g.must("", "for-each-ref"); got != refs {
			t.Errorf("to %s: the references are %s", to, got)
		}
	}
	// HEAD may be at the branch by way of another one.
	g := repo(t, base)
	g.must("", "branch", "-m", "fix")
	g.must("", "symbolic-ref", "refs/heads/alias", "refs/heads/fix")
	g.must("", "symbolic-ref", "HEAD", "refs/heads/alias")
	if out, err := g.onBranch(base, tree{"a": "2\n"}, BranchOptions{}); err == nil || !strings.Contains(err.Error(), "checked out") {
		t.Errorf("%v %+v", err, out)
	}
}

// Git cannot have a branch below or above another one. That is said before anything is noted.
func TestABranchWhoseNameIsInTheWayOfAnotherIsRefused(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n"}
	for has, name := range map[string]string{"fix/old": "fix", "fix": "fix/a/b", "fix/a": "fix/a/b"} {
		g := repo(t, base)
		for _, one := range []string{has, "fixed", "main-2"} {
			g.must("", "branch", one)
		}
		bring := func(name string) error {
			_, err := Commit(t.Context(), changes(t, base, tree{"a": "2\n"}), BranchOptions{Folder: g.dir, Branch: name, Message: "Work", Label: "sandbox", Note: func(Committed) error {
				if name != "fix/b" && name != "fix2" {
					t.Errorf("%s is noted", name)
				}
				return nil
			}})
			return err
		}
		if err := bring(name); err == nil || !strings.Contains(err.Error(), "git has the branch "+has+",") {
			t.Errorf("%s: %v", name, err)
		}
		free := "fix2"
		if has != "fix" {
			free = "fix/b"
		}
		if err := bring(free); err != nil {
			t.Error(err)
		}
	}
}

// Whoever comes second, or finds the branch locked, is told to try again.
func TestABranchThatAnotherCommandMovesIsLeft(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n"}
	for _, what := range []string{"makes it", "moves it", "locks it"} {
		g := repo(t, base)
		if what == "moves it" {
			g.must("", "branch", "fix")
		}
		want := ""
		_, err := g.onBranch(base, tree{"a": "2\n"}, BranchOptions{Note: func(Committed) error {
			switch what {
			case "locks it":
				tree{".git/refs/heads/fix.lock": ""}.write(t, g.dir)
			default:
				want = strings.TrimSpace(g.must("", "commit-tree", "-m", "other", "-p", "main", "main^{tree}"))
				g.must("", "update-ref", "refs/heads/fix", want)
			}
			return nil
		}})
		if !errors.As(err, new(*gitError)) || !strings.Contains(err.Error(), "another command moves the branch fix: run this one again") {
			t.Errorf("%s: %v", what, err)
		}
		if got := g.tipOf("fix"); got != want {
			t.Errorf("%s: the branch is at %q", what, got)
		}
	}
	// Other errors are others.
	g := repo(t, base)
	if _, err := g.onBranch(base, tree{"a": "2\n"}, BranchOptions{Note: func(Committed) error {
		g.must("", "branch", "fix/old")
		return nil
	}}); err == nil || strings.Contains(err.Error(), "another command") {
		t.Error(err)
	}
}

// A partial clone has not the contents of all files of a branch.
func TestABranchOfAPartialCloneGetsACommit(t *testing.T) {
	t.Parallel()
	base := tree{"d/x": "1\n", "d/y": "2\n", "z": "z\n"}
	from := repo(t, base, "uploadpack.allowFilter=true")
	from.must("", "checkout", "-q", "-b", "other")
	from.commit("other", tree{"d/y": "22\n", "z": "zz\n"})
	from.must("", "checkout", "-q", "main")
	g := repository{t: t, dir: filepath.Join(t.TempDir(), "clone")}
	from.must("", "clone", "-q", "--filter=blob:none", "file://"+from.dir, g.dir)
	g.set("user.name=Ann", "user.email=ann@example.org")
	g.must("", "branch", "-q", "fix", "origin/other")
	copied, in := g.head(), g.inside()
	theirs := tree{"d/x": "new\n", "d/y": "2\n", "z": "z\n"}
	g.mustBranch(base, theirs)
	if missing := g.must("", "rev-list", "--objects", "--missing=print", "fix"); !strings.Contains(missing, "\n?") {
		t.Errorf("nothing is missing: %s", missing)
	}
	theirs.write(t, in.dir)
	in.commit("one", tree{"new": "n\n"})
	if out, err := g.bringHistory(in, copied, theirs); err != nil || len(out.Commits) != 1 {
		t.Errorf("%v: %+v", err, out)
	}
	wantTree(t, "the branch", g.files("fix"), tree{"d/x": "new\n", "d/y": "22\n", "z": "zz\n", "new": "n\n"})
}

// countGit counts the gits that start from now on.
func countGit(t *testing.T) (count func() int) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	log := filepath.Join(bin, "log")
	err = os.WriteFile(filepath.Join(bin, "git"), []byte("#!/bin/sh\necho >>'"+log+"'\nexec '"+git+"' \"$@\"\n"), 0o700)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return func() int {
		started, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return len(started)
	}
}

// Most of the time of a small piece of work is the start of gits.
func TestABranchStartsFewGits(t *testing.T) {
	base := tree{"a": "1\n"}
	for _, format := range []string{"sha1", "sha256"} {
		for text, most := range map[string]int{"1\n": 9, "2\n": 21} {
			t.Run(format+" "+text, func(t *testing.T) {
				t.Setenv("GIT_DEFAULT_HASH", format)
				g := repo(t, base)
				g.must("", "branch", "fix")
				count := countGit(t)
				if out := g.mustBranch(base, tree{"a": text}); out.Tip == "" {
					t.Errorf("%+v", out)
				}
				if n := count(); n > most {
					t.Errorf("%d gits have started", n)
				}
			})
		}
	}
}
