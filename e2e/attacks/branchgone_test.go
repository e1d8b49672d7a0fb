package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// committed makes a repository with a commit of files.
func committed(t *testing.T, in *harness.Install, files map[string]string) string {
	t.Helper()
	root := write(t, in, "project", files)
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"add", "."}, {"commit", "-q", "-m", "first"}} {
		git(t, root, args...)
	}
	return root
}

// What went to a branch counts as brought as long as a reference of the repository has the commit.
func TestWorkOfABranchThatIsGoneIsPendingAgain(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	pending := func(when, want string) {
		t.Helper()
		harness.WantSame(t, when, in.Agbox(t, "diff", "demo", "--name-only").Want(t, 0).Stdout, want)
	}
	asked := func(when string) {
		t.Helper()
		if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "precious") {
			t.Errorf("%s: rm ended with %d: %s", when, r.Code, r.Stderr)
		}
	}
	inside(t, in, "demo", "echo work > /workspace/precious")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	pending("on the branch", "")
	git(t, root, "branch", "-q", "-m", "w", "renamed")
	pending("on the renamed branch", "")
	git(t, root, "branch", "-q", "-D", "renamed")
	pending("the branch is deleted", "precious\n")
	asked("the branch is deleted")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	harness.WantSame(t, "the branch again", git(t, root, "show", "w:precious"), "work")
	pending("on the branch again", "")
	inside(t, in, "demo", "echo 2 > /workspace/b")
	in.Agbox(t, "apply", "demo", "b", "--branch", "other").Want(t, 0)
	git(t, root, "branch", "-q", "-f", "w", "main")
	pending("the branch is reset, another one has a file", "precious\n")
	write(t, in, "project", map[string]string{"precious": "work\n"})
	pending("the folder has the file", "")
	if err := os.Rename(filepath.Join(root, ".git"), filepath.Join(root, "..", "moved")); err != nil {
		t.Fatal(err)
	}
	pending("the repository is gone", "b\n")
	if err := os.Rename(filepath.Join(root, "..", "moved"), filepath.Join(root, ".git")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(root, "precious")); err != nil {
		t.Fatal(err)
	}
	git(t, root, "reflog", "expire", "--expire=now", "--all")
	git(t, root, "gc", "-q", "--prune=now")
	asked("git has removed the commit")
	in.Agbox(t, "apply", "demo").Want(t, 0)
	git(t, root, "branch", "-q", "-D", "other")
	in.Must(t, "rm", "demo") // the folder has all
}

func TestCommitsOfABranchThatIsGoneArePendingAgain(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 > a; echo 3 > new; git add -A; git commit -qm second")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
	was := git(t, root, "rev-parse", "w")
	git(t, root, "branch", "-q", "-D", "w")
	if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "2 changed files (a, new) and its commits up to") {
		t.Errorf("rm ended with %d: %s", r.Code, r.Stderr)
	}
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	harness.WantSame(t, "the branch again", git(t, root, "rev-parse", "w"), was)
	in.Must(t, "rm", "demo")
}
