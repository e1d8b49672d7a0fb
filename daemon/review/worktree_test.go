package review

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/workspace/archive"
)

// TestAnIgnoredWorkTreeInWhichGitHasWorkedIsWork: its files are ignored, and no reference names them.
func TestAnIgnoredWorkTreeInWhichGitHasWorkedIsWork(t *testing.T) {
	install, dir := paths.Install{Data: t.TempDir()}, t.TempDir()
	run := func(script string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	run(`git init -q -b main; printf 'trees\n*.o\n' > .gitignore; mkdir deep; echo 1 > a; echo 1 > deep/b; ln -s a link; echo 1 > c.o; git add -f .; git commit -qm one`)
	record(t, dir, install.GuestBase("s"))
	base, err := New(nil, install).Open("s", nil, agboxv1.WorkBase_WORK_BASE_FOLDER, Commits{})
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	open := func(ctx context.Context, path string) (io.ReadCloser, error) {
		path = dir + strings.TrimPrefix(path, "/workspace")
		parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(err, errdefs.ErrNotFound)
		}
		defer unix.Close(parent)
		var out bytes.Buffer
		if err := archive.Pack(ctx, &out, parent, filepath.Base(path), archive.PackOptions{Name: filepath.Base(path)}); err != nil {
			return nil, errors.Join(err, errdefs.ErrNotFound)
		}
		return io.NopCloser(&out), nil
	}
	for _, one := range []struct {
		what, script string
		clean        bool
	}{
		{"a new one", "", false},
		{"one of before the copy", `touch -d @1 "$(git rev-parse --git-dir)/index"`, true},
		{"one of before the copy in which git has worked", `touch -d @1 "$(git rev-parse --git-dir)/index"; echo 2 > a; git status`, false},
		{"no index", `rm "$(git rev-parse --git-dir)/index"`, false},
		{"one that git does not know", `rm -r "$(git rev-parse --git-dir)"`, true},
		{"a long file", `head -c 10000 /dev/zero > "$(git rev-parse --git-dir)/commondir"`, false},
	} {
		t.Run(one.what, func(t *testing.T) {
			run(`rm -rf trees; git worktree prune; git for-each-ref --format='%(refname)' refs/heads/side refs/heads/x | xargs -rn1 git update-ref -d
git worktree add -q -b x trees/x; (cd trees/x; ` + one.script + `
:); echo "gitdir: ../../.git/worktrees/x" > trees/x/.git`)
			var said []string
			err := New(nil, install).CompareStopped(t.Context(), "s", base, Options{NamesOnly: true, Removal: true}, open, func(m *agboxv1.CompareWorkspaceResponse) error {
				if u := m.GetUnshown(); u != nil {
					said = append(said, u.GetWhat())
				}
				if d := m.GetDifference(); d != nil {
					t.Errorf("%q is shown", d.GetPath())
				}
				return nil
			})
			want := "[]"
			if !one.clean {
				want = `[what may not be committed in the ignored work tree "trees/x"]`
			}
			if err != nil || fmt.Sprint(said) != want {
				t.Errorf("%q, %v; want %s", said, err, want)
			}
		})
	}
}
