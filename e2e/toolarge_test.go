package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAFileThatIsTooLargeIsNamedAndTheRestComesHome(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.repository(t, map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "cd /workspace; echo 2 >a; truncate -s 1073741825 huge; truncate -s 1099511627776 holes")
	brings := "agbox cp demo:/workspace/huge " + filepath.Join(dir, "huge")
	named := func(r harness.Result, stdout string) {
		t.Helper()
		if r.Stdout != stdout || !strings.Contains(r.Stderr, "huge: too large: 1073741825 bytes") || !strings.Contains(r.Stderr, "`"+brings+"`") || !strings.Contains(r.Stderr, "holes: too large") {
			t.Errorf("%v said %s%s", r.Args, r.Stdout, r.Stderr)
		}
	}
	patch := in.Agbox(t, "diff", "demo").Want(t, 0)
	named(patch, patch.Stdout)
	if !strings.Contains(patch.Stdout, "+2\n") {
		t.Errorf("the patch is %q", patch.Stdout)
	}
	named(in.Agbox(t, "diff", "demo", "--stat").Want(t, 0), " a     |   2 +-\n holes | Bin 0 -> 1099511627776 bytes\n huge  | Bin 0 -> 1073741825 bytes\n 3 files changed, 1 insertion(+), 1 deletion(-)\n")
	in.Agbox(t, "diff", "demo", "--name-only").Want(t, 0).WantOutput(t, "a\nholes\nhuge\n", "")
	in.Agbox(t, "apply", "demo", "a", "--check").Want(t, 0).WantOutput(t, "M a\n", "") // another file is named
	named(in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 1), "M a\n")
	named(in.Agbox(t, "apply", "demo").Want(t, 1), "M a\n")
	wantFile(t, filepath.Join(dir, "a"), "2\n")
	in.inside(t, "demo", "echo 2 >/workspace/b")
	named(in.Agbox(t, "pull", "demo").Want(t, 1), "M b\n")
	in.inside(t, "demo", "echo 3 >/workspace/b")
	r := in.Agbox(t, "sync", "demo").Want(t, 1)
	if !strings.Contains(r.Stdout, "<- M b\n") || !strings.Contains(r.Stdout, "huge  (conflict: it is too large in the sandbox") {
		t.Errorf("sync said %s%s", r.Stdout, r.Stderr)
	}
	in.inside(t, "demo", "rm /workspace/holes")
	refused(t, in.Agbox(t, "rm", "demo"), 4, "Removing sandbox demo would lose 1 changed file (huge). `agbox diff demo` shows the changes, `agbox apply demo` brings them back. "+
		"It says how files come that are too large. `agbox rm -f demo` removes it anyway.")
	in.Must(t, strings.Fields(brings)[1:]...)
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "", "agbox: There is nothing new in sandbox demo.\n")
	in.Agbox(t, "sync", "demo").Want(t, 0)
	in.Must(t, "rm", "demo")
}

// TestANameThatGitRefusesIsNamedAndLeftOut: what was copied in under such a name is no work.
func TestANameThatGitRefusesIsNamedAndLeftOut(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.repository(t, map[string]string{"a": "1\n"})
	in.write(t, filepath.Base(dir), map[string]string{"git~1/copied": "of the folder\n"})
	if err := os.Chtimes(filepath.Join(dir, "git~1/copied"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.Agbox(t, "diff", "demo", "--name-only").Want(t, 0).WantOutput(t, "", "")
	in.inside(t, "demo", "cd /workspace; echo 2 >a; mkdir s '.git '; echo v >s/GIT~1; echo v >git~1/made; echo v >'.git /x'; echo v >.git:s; echo v >.git/config")
	named := func(r harness.Result) {
		t.Helper()
		for _, name := range []string{"s/GIT~1", "git~1/made", ".git /x", ".git:s"} {
			if !strings.Contains(r.Stderr, name+": left out: some file systems take its name for .git, and git refuses it.") {
				t.Errorf("%v said %s%s", r.Args, r.Stdout, r.Stderr)
			}
		}
	}
	for _, when := range []string{"running", "stopped"} {
		in.Agbox(t, "diff", "demo", "--name-only").Want(t, 0).WantOutput(t, ".git /x\n.git:s\na\ngit~1/made\ns/GIT~1\n", "")
		named(in.Agbox(t, "diff", "demo").Want(t, 0))
		if when == "running" {
			in.Must(t, "stop", "demo")
		}
	}
	in.Must(t, "start", "demo")
	named(in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 1))
	named(in.Agbox(t, "apply", "demo").Want(t, 1))
	wantFile(t, filepath.Join(dir, "a"), "2\n")
	for _, name := range []string{"s", ".git ", ".git:s", "git~1/made"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("the folder has %s", name)
		}
	}
	r := in.Agbox(t, "sync", "demo").Want(t, 1)
	if !strings.Contains(r.Stdout, "!! U s/GIT~1  (conflict: some file systems take its name for .git, so it is left out)") {
		t.Errorf("sync said %s%s", r.Stdout, r.Stderr)
	}
	if r := in.Agbox(t, "rm", "demo").Want(t, 4); !strings.Contains(r.Stderr, "would lose 4 changed files (.git /x, .git:s, git~1/made, s/GIT~1)") ||
		!strings.Contains(r.Stderr, " It says how files come whose names git refuses.") || strings.Contains(r.Stderr, "too large") {
		t.Errorf("rm said %s", r.Stderr)
	}
}
