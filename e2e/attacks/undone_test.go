package attacks

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// forms makes a repository with files of each form, and a sandbox with it. f has what is dirty and not
// committed, and a file is not tracked.
func forms(t *testing.T, in *harness.Install, box, dirty string) (root string) {
	t.Helper()
	root = write(t, in, box, map[string]string{"f": "1\n", "g": "1\n", "d/e/f": "1\n", ".gitignore": "ign\n"})
	if err := os.Symlink("nowhere", filepath.Join(root, "l")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"add", "."}, {"commit", "-q", "-m", "first"}} {
		git(t, root, args...)
	}
	write(t, in, box, map[string]string{"f": cmp.Or(dirty, "1\n"), "untracked": "1\n"})
	in.Create(t, box, harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	return root
}

// The files of the work are not those of HEAD if the work tree has changed what was committed, or taken it back.
// Each comes home in one way, or in all with -everywhere.
func TestACommitThatTheWorkTreeHasUndoneIsNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits whose files the work tree has otherwise")
	in := harness.New(t)
	ways := []struct {
		home    string
		command []string
	}{{"squash", []string{"apply", "--branch", "all", "--squash"}}, {"apply", []string{"apply"}}, {"sync", []string{"sync"}}}
	for n, one := range []struct {
		name string
		// dirty is what f has when the folder is copied and not committed.
		dirty string
		// mine is what the user writes to f before the last of steps.
		mine string
		// Each of steps is done in the sandbox, and what it leaves comes home.
		steps []string
		asked bool
	}{
		{"modified", "", "", []string{"echo 2 > f; git commit -qam c1; git show HEAD~1:f > f"}, true},
		{"removed", "", "", []string{"echo 2 > x; git add x; git commit -qm c1; rm x"}, true},
		{"lost", "", "", []string{"echo 2 > f; git commit -qam c1; rm f"}, true},
		{"ignored", "", "", []string{"echo 2 > ign; git add -f ign; git commit -qm c1; git rm -q --cached ign"}, true},
		{"mode", "", "", []string{"chmod +x f; git commit -qam c1; chmod -x f"}, true},
		{"linked", "", "", []string{"ln -sfn f l; git commit -qam c1; ln -sfn nowhere l"}, true},
		{"deep", "", "", []string{"echo 2 > d/e/f; git commit -qam c1; echo 1 > d/e/f"}, true},
		{"dirtyback", "dirty\n", "", []string{"echo 2 > f; git commit -qam c1; echo dirty > f"}, true},
		{"later", "", "", []string{"echo 2 > f; git commit -qam c1", "echo 3 > f; git commit -qam c2; echo 2 > f"}, true},
		{"farback", "", "", []string{"echo 2 > f; git commit -qam c1", "echo 3 > f; git commit -qam c2; echo 1 > f"}, true},
		{"beside", "", "", []string{"echo 2 > f; git commit -qam c1; echo 2 > g; git commit -qam c2; echo 1 > f"}, true},
		{"packed", "", "", []string{"echo 2 > f; git commit -qam c1; git repack -qad"}, true},
		{"edited", "", "", []string{"echo 2 > f; git commit -qam c1; echo 3 > f"}, true},
		{"between", "", "", []string{"echo 2 > f; git commit -qam c1; echo 3 > f; git commit -qam c2; git show HEAD~1:f > f"}, true},
		{"dirtyagain", "dirty\n", "", []string{"echo 2 > f; git commit -qam c1", "echo 3 > f; git commit -qam c2; echo dirty > f"}, true},
		{"othermode", "", "", []string{"echo 2 > f; git commit -qam c1; git show HEAD~1:f > f; chmod +x f"}, true},
		{"eolback", "", "", []string{`printf 'f text eol=crlf\n' > .gitattributes; printf '2\r\n' > f; git add .; git commit -qm c1`, `printf '3\r\n' > f; git commit -qam c2; printf '2\r\n' > f`}, true},

		{"eol", "", "", []string{`printf 'f text eol=crlf\n' > .gitattributes; printf '2\r\n' > f; git add .; git commit -qm c1`, `printf '3\r\n' > f; git commit -qam c2`}, false},
		{"twice", "", "", []string{"echo 2 > f; git commit -qam c1; echo 3 > f; git commit -qam c2"}, false},
		{"again", "", "", []string{"echo 2 > f; git commit -qam c1", "echo 2 > g; git commit -qam c2", "git rm -q f; git commit -qam c3"}, false},
		{"dirty", "dirty\n", "", []string{"git commit -qam c1", "echo 2 > g; git commit -qam c2"}, false},
		{"first", "", "", []string{"echo 2 > f", "git commit -qam c1"}, false},
		{"mine", "", "3\n", []string{"echo 2 > f", "git commit -qam c1"}, false},
		{"forms", "", "", []string{"chmod +x f; ln -sfn f l; echo 2 > ign; git add -f ign; echo 2 > d/e/f; git commit -qam c1"}, false},
		{"back", "", "", []string{"echo 2 > f; git commit -qam c1; git revert --no-edit HEAD; echo 2 > g; git commit -qam c3"}, false},
	} {
		for i, way := range ways {
			if i != n%len(ways) && !*everywhere || way.home == "squash" && one.name == "dirtyagain" {
				continue // that one is in conflict with what the branch begins at
			}
			t.Run(way.home+" "+one.name, func(t *testing.T) {
				box := way.home + one.name
				forms(t, in, box, one.dirty)
				defer in.Agbox(t, "rm", "-f", box)
				for i, step := range one.steps {
					if one.mine != "" && i == len(one.steps)-1 {
						write(t, in, box, map[string]string{"f": one.mine})
					}
					inside(t, in, box, "set -e; cd /workspace; "+step)
					in.Must(t, append(slices.Clone(way.command), box)...)
				}
				if one.asked {
					asks(t, in, box, "would lose its commits up to "+inside(t, in, box, "cd /workspace; printf %.12s $(git rev-parse HEAD)")+". `agbox apply "+box+" --branch NAME` brings the commits.")
					in.Must(t, append(slices.Clone(way.command), box)...)
					asks(t, in, box, "would lose its commits up to ")
					in.Must(t, "apply", box, "--branch", "fix")
				}
				in.Must(t, "rm", box)
			})
		}
	}
}

// Commits change without the files of the work tree, and what they have may have gone to a branch only.
func TestCommitsThatChangeWithoutTheirFilesAreNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits that are made after their files came, or whose files went to a branch")
	in := harness.New(t)
	const two, three = "in echo 2 > f; ln -sfn f l; chmod +x g", "my echo 3 > f; ln -sfn mine l; chmod -x g"
	for name, one := range map[string]struct {
		asked bool
		// steps are done in the sandbox (in), in the folder (my), or are commands of agbox that name it.
		steps []string
	}{
		"after":   {false, []string{"in echo 2 > f; echo 2 > x", "apply", "in git add .; git commit -qm c1"}},
		"sync":    {false, []string{"in echo 2 > f", "sync", "in git commit -qam c1"}},
		"mine":    {false, []string{two, "apply", three, "in git commit -qam c1"}},
		"stopped": {false, []string{two, "apply", three, "in git commit -qam c1", "stop"}},
		"eol":     {false, []string{`in printf 'f text eol=crlf\n' > .gitattributes; printf '2\r\n' > f`, "apply", "my echo 3 > f", "in git add .; git commit -qm c1"}},
		"forward": {false, []string{"in echo 2 > f; git commit -qam c1", "apply", "in echo 5 > f", "apply", "in echo 2 > g; git add g; git commit -qm c2; echo 3 > g", "apply", "in git commit -qm c3 g", "apply"}},
		"again":   {false, []string{"in echo 2 > f; git commit -qam c1", "apply --branch all --squash", "in git commit -q --amend -m again", "apply --branch all --squash", "in echo 3 > f", "apply"}},
		"other":   {true, []string{"in echo 2 > f", "apply", "my echo 3 > f", "in git commit -qam c1; echo 4 > f; git commit -qam c2; echo 2 > f"}},
		"cached":  {true, []string{"in echo 2 > f; echo 2 > untracked; git add .; git commit -qm c1; git rm -q --cached untracked", "apply --branch all --squash", "in echo 1 > untracked"}},
		"branch":  {true, []string{"in echo 2 > f", "apply --branch all -- f", "in echo 2 > g; git commit -qam c1; echo 1 > f", "apply", "my git branch -qD all"}},
		"part":    {true, []string{"in echo 2 > f; echo 2 > x; git add x; git commit -qam c1", "apply --branch all", "in echo 1 > f", "my git checkout -q all -- x; git branch -qD all"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := forms(t, in, name, "")
			defer in.Agbox(t, "rm", "-f", name)
			for _, step := range one.steps {
				kind, what, _ := strings.Cut(step, " ")
				switch kind {
				case "in":
					inside(t, in, name, "set -e; cd /workspace; "+what)
				case "my":
					if out, err := exec.Command("sh", "-ec", "cd "+root+"; "+what).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				default:
					in.Must(t, append([]string{kind, name}, strings.Fields(what)...)...)
				}
			}
			if one.asked {
				asks(t, in, name, "would lose its commits up to ")
				in.Must(t, "apply", name, "--branch", "fix")
			}
			in.Must(t, "rm", name)
		})
	}
}

// A conflict that the user has settled leaves nothing of the commit in the sandbox, unless the work tree
// has undone another file.
func TestCommitsAreHomeOnceAllConflictsAreContinued(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits of files in conflict")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n", "c": "1\n"})
	for _, undone := range []bool{false, true} {
		in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
		inside(t, in, "demo", "set -e; cd /workspace; echo theirs > a; echo theirs > b; echo theirs > c; git commit -qam c1")
		if undone {
			inside(t, in, "demo", "cd /workspace; git show HEAD~1:c > c")
		}
		write(t, in, "project", map[string]string{"a": "ours\n"})
		if err := os.Remove(filepath.Join(root, "b")); err != nil {
			t.Fatal(err)
		}
		in.Agbox(t, "apply", "demo").Want(t, 1)
		asks(t, in, "demo", "its commits up to ")
		in.Agbox(t, "apply", "demo", "--continue").Want(t, 1) // the markers
		asks(t, in, "demo", "its commits up to ")
		write(t, in, "project", map[string]string{"a": "ours\n"})
		in.Must(t, "apply", "demo", "--continue")
		if undone {
			asks(t, in, "demo", "would lose its commits up to ")
			in.Must(t, "rm", "-f", "demo")
			continue
		}
		in.Must(t, "rm", "demo")
		git(t, root, "checkout", "-q", ".")
	}
}

// An apply stops half-way, because a folder cannot be written. Then the user cleans the folder, so what had come
// is not there any more.
func TestWorkOfAnApplyThatStoppedHalfwayIsNotLost(t *testing.T) {
	t.Parallel()
	Row(t, 130, "an apply that stopped half-way, and a folder that was cleaned")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "d/b": "1\n"})
	closed := filepath.Join(root, "d") // for a while, nobody can write it
	halfway := func(box string) {
		t.Helper()
		in.Create(t, box, harness.ImageDebian, append(withGit(t), "--workspace", root)...)
		inside(t, in, box, "cd /workspace; echo 2 > a; echo 2 > d/b; echo 2 > x")
		var r harness.Result
		for _, change := range []string{"+i", "-i"} {
			if out, err := exec.Command("chattr", change, closed).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if change == "+i" {
				r = in.Agbox(t, "apply", box)
			}
		}
		if text, err := os.ReadFile(filepath.Join(root, "a")); string(text) != "2\n" || r.Code == 0 {
			t.Fatalf("a is %q, %v; apply exits with %d", text, err, r.Code)
		}
		git(t, root, "checkout", "-q", ".")
		git(t, root, "clean", "-qfd")
	}
	halfway("demo")
	in.Must(t, "apply", "demo")
	if got := git(t, root, "status", "--short"); got != " M a\n M d/b\n?? x" {
		t.Errorf("the folder has %q", got)
	}
	in.Must(t, "rm", "demo")
	git(t, root, "checkout", "-q", ".")
	git(t, root, "clean", "-qfd")
}
