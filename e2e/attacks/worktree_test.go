package attacks

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAWorktreeWorksMountedAndCopied(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := project(t, in)
	tree, git0 := filepath.Join(in.Home, "tree"), filepath.Join(dir, ".git")
	for _, one := range []string{dir, tree} {
		if out, err := exec.CommandContext(harness.Bounded(t), "chown", "-R", "4321:4321", one).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	const work = `set -e; cd /workspace; git status --porcelain; echo two >>main.c; git commit -qam "$1"; git gc -q; git log --format=%s`
	in.Create(t, "mounted", harness.ImageDebian, append(withGit(t), "--mount-workspace", tree)...)
	harness.WantSame(t, "mounted", in.Must(t, "exec", "mounted", "--", "sh", "-c", work, "sh", "inside"), "inside\nfirst")
	harness.WantSame(t, "the host's branch", git(t, "/", "-c", "safe.directory=*", "-C", dir, "log", "--format=%s", "tree"), "inside\nfirst")
	refused := inside(t, in, "mounted", "cd "+git0+"; for f in hooks/x config worktrees/tree/commondir; do (echo x >$f) 2>/dev/null || echo refused; done; (mv "+git0+" /tmp/x) 2>/dev/null || echo refused")
	harness.WantSame(t, "what the host executes", refused, strings.Repeat("refused\n", 4))
	if text := in.Must(t, "inspect", "mounted"); !strings.Contains(text, git0) {
		t.Errorf("inspect does not show the repository:\n%s", text)
	}

	in.Create(t, "copied", harness.ImageDebian, append(withGit(t), "--workspace", tree)...)
	harness.WantSame(t, "copied", in.Must(t, "exec", "copied", "--", "sh", "-c", work, "sh", "copied"), "copied\ninside\nfirst")
	harness.WantSame(t, "the work", in.Must(t, "diff", "copied", "--name-only"), "main.c")
	in.Must(t, "apply", "copied")
	harness.WantSame(t, "the tree", git(t, "/", "-c", "safe.directory=*", "-C", tree, "status", "--porcelain"), " M main.c")
}
