package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// nested makes a project with a submodule and with a repository of its own in a folder.
func nested(t *testing.T, in *harness.Install) (dir string) {
	t.Helper()
	part := write(t, in, "part", map[string]string{"file": "one\n"})
	git(t, part, "init", "-q", "-b", "main")
	git(t, part, "add", "-A")
	git(t, part, "commit", "-q", "-m", "first")
	dir = project(t, in)
	git(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", part, "lib/part")
	git(t, dir, "clone", "-q", part, "tools/own")
	git(t, dir, "add", "tools/own") // git status looks into it too
	git(t, dir, "commit", "-q", "-m", "with parts")
	return dir
}

func TestASandboxCannotChangeRepositoriesInAMountedFolder(t *testing.T) {
	t.Parallel()
	Row(t, 4, "settings, hooks and .git files of submodules and repositories in a mounted folder are changed")
	in := harness.New(t)
	dir := nested(t, in)
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--mount-workspace", dir)...)
	ran := filepath.Join(in.Home, "ran")
	hook := "#!/bin/sh\\ntouch " + ran + "\\n"
	for _, change := range []string{
		"git -C tools/own config core.fsmonitor " + ran, "echo x >>tools/own/.git/config", "printf '" + hook + "' >tools/own/.git/hooks/post-checkout",
		"mv tools/own/.git tools/own/git", "mv tools/own tools/other", "mv tools tools2", "rm -rf tools/own/.git/config",
		"git config -f .git/modules/lib/part/config core.fsmonitor x", "printf '" + hook + "' >.git/modules/lib/part/hooks/post-checkout", "mv .git/modules/lib/part .git/modules/lib/x",
		"echo 'gitdir: ../../evil' >lib/part/.git", "rm lib/part/.git", "mv lib/part lib/x", "mv lib lib2", "umount tools/own/.git/hooks",
	} {
		harness.WantSame(t, change, inside(t, in, "demo", "cd /workspace; ("+change+") >/dev/null 2>&1 && echo changed || echo refused"), "refused\n")
	}
	harness.WantSame(t, "commits", inside(t, in, "demo", `set -e; for d in tools/own lib/part .; do cd /workspace/$d; echo two >>new; git add new; git commit -qam two; git log --format=%s -1; done`), "two\ntwo\ntwo\n")
	harness.WantSame(t, "the project", git(t, dir, "status", "--porcelain"), "")
	if _, err := os.Lstat(ran); err == nil {
		t.Error("a command of the sandbox ran on the host")
	}
	if r := in.Agbox(t, "stop", "demo").Want(t, 0); r.Stderr != "" {
		t.Errorf("stop says: %s", r.Stderr)
	}
}

func TestARepositoryThatASandboxLeavesIsNamed(t *testing.T) {
	t.Parallel()
	Row(t, 4, "a sandbox makes a repository in a mounted folder, whose settings the host's git status would execute")
	Row(t, 111, "a sandbox leaves bare repositories in a mounted folder and is removed")
	in := harness.New(t)
	dir := nested(t, in)
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--mount-workspace", dir)...)
	inside(t, in, "demo", `set -e; cd /workspace; git init -q --bare src/bare; mkdir -p src/half src/o; echo 'ref: refs/heads/main' >src/half/HEAD; ln -s ../o src/half/objects; ln -s ../o src/half/refs
		git init -q src/evil; cd src/evil; echo a >a; git add a; git commit -qm x
		git config core.fsmonitor /workspace/evil.sh; cd ../..; git add src/evil 2>/dev/null; echo x >.git/commondir2; mkdir .git/modules/new; cp -r .git/modules/lib/part .git/modules/new/x`)
	for _, command := range [][]string{{"inspect", "demo"}, {"stop", "demo"}, {"rm", "demo"}} {
		code := 0
		if command[0] == "rm" {
			code = 4
		}
		r := in.Agbox(t, command...).Want(t, code)
		for _, want := range []string{filepath.Join(dir, "src/evil/.git") + "  (a repo", filepath.Join(dir, ".git/modules/new/x/config"), filepath.Join(dir, "src/bare") + "  (a repo", filepath.Join(dir, "src/half") + "  (a repo"} {
			if !strings.Contains(r.Stderr, want) {
				t.Errorf("%v does not name %s: %s", command, want, r.Stderr)
			}
		}
		if strings.Contains(r.Stderr, "tools/own") {
			t.Errorf("%v names what is covered: %s", command, r.Stderr)
		}
	}
	if code := answered(in.OnTerminal(t, "rm", "demo"), "Remove the sandbox anyway?", "n"); code != 4 {
		t.Errorf("a no ends with %d", code)
	}
	in.Must(t, "rm", "-f", "demo")
	r := in.Agbox(t, "run", "--rm", "--image", harness.ImageDebian, "--mount-workspace", filepath.Join(in.Home, "part"), "--", "sh", "-c", "echo a >.envrc").Want(t, 0)
	if !strings.Contains(r.Stderr, "part/.envrc") {
		t.Errorf("run says: %s", r.Stderr)
	}
}
