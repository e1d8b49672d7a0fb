package attacks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestSubmodulesWorkMountedAndCopied(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	part := write(t, in, "part", map[string]string{"file": "one\n"})
	git(t, part, "init", "-q", "-b", "main")
	git(t, part, "add", "-A")
	git(t, part, "commit", "-q", "-m", "first")
	dir := project(t, in)
	git(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", part, "lib/part")
	git(t, dir, "commit", "-q", "-m", "with a part")
	onHost := func(folder string, args ...string) string {
		t.Helper()
		return git(t, "/", append([]string{"-c", "safe.directory=*", "-C", folder}, args...)...)
	}
	const work = `set -e; cd /workspace/lib/part; git status --porcelain; echo "$1" >>file; git commit -qam "$1"; cd ../..; git add lib/part; git commit -qm "moves the part"; git submodule status | grep -v "^ " || true; git log --format=%s -1`
	in.Create(t, "copied", harness.ImageDebian, append(withGit(t), "--workspace", dir)...)
	harness.WantSame(t, "copied", in.Must(t, "exec", "copied", "--", "sh", "-c", work, "sh", "two"), "moves the part")
	// The moved link comes out as the files that it changed.
	harness.WantSame(t, "the work", in.Must(t, "diff", "copied", "--name-only"), "lib/part/file")
	if r := in.Agbox(t, "apply", "copied", "--branch", "topic").Want(t, 4); !strings.Contains(r.Stderr, "--squash makes one commit without it") {
		t.Errorf("commits that move a part are refused with %s", r.Stderr)
	}
	r := in.Agbox(t, "apply", "copied", "--branch", "topic", "--squash").Want(t, 1)
	aside := "agbox: Not on the branch, because a submodule has them: lib/part/file. `agbox apply copied lib/part/file` brings them to the folder.\n"
	r.WantOutput(t, "", aside+"agbox: No branch was made: nothing of the work can be on it.\n")
	in.Must(t, "exec", "copied", "--", "sh", "-c", "echo more >> /workspace/more")
	git(t, dir, "config", "user.name", "Ann")
	git(t, dir, "config", "user.email", "ann@example.org")
	r = in.Agbox(t, "apply", "copied", "--branch", "topic", "--squash").Want(t, 0)
	r.WantOutput(t, "A more\n", aside+"agbox: Branch topic has the work as commit "+git(t, dir, "rev-parse", "--short=12", "topic")+".\n")
	harness.WantSame(t, "the branch", git(t, dir, "show", "topic:more"), "more")
	harness.WantSame(t, "what is left", in.Must(t, "diff", "copied", "--name-only"), "lib/part/file")
	in.Agbox(t, "apply", "copied", "lib/part/file").Want(t, 0).WantOutput(t, "M lib/part/file\n", "")
	harness.WantSame(t, "the history of the part", onHost(filepath.Join(dir, "lib/part"), "log", "--format=%s"), "first")
	harness.WantSame(t, "the project", onHost(dir, "status", "--porcelain"), " M lib/part")
	if text, err := os.ReadFile(filepath.Join(dir, "lib/part/.git")); err != nil || string(text) != "gitdir: ../../.git/modules/lib/part\n" {
		t.Errorf("the part's .git is %q, %v", text, err)
	}

	onHost(filepath.Join(dir, "lib/part"), "checkout", "-q", "--", "file")
	if out, err := exec.CommandContext(harness.Bounded(t), "chown", "-R", "4321:4321", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	in.Create(t, "mounted", harness.ImageDebian, append(withGit(t), "--mount-workspace", dir)...)
	harness.WantSame(t, "mounted", in.Must(t, "exec", "mounted", "--", "sh", "-c", work, "sh", "three"), "moves the part")
	harness.WantSame(t, "the host's part", onHost(filepath.Join(dir, "lib/part"), "log", "--format=%s"), "three\nfirst")
	harness.WantSame(t, "the host's project", onHost(dir, "status", "--porcelain"), "")
	harness.WantSame(t, "the part's hooks", inside(t, in, "mounted", "cd /workspace/.git/modules/lib/part; (echo x >hooks/x) 2>/dev/null || echo refused; (echo x >config) 2>/dev/null || echo refused"), "refused\nrefused\n")
}
