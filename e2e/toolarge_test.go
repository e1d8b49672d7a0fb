package e2e

import (
	"path/filepath"
	"strings"
	"testing"

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
