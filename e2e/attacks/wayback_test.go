package attacks

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// git runs git on the host.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(harness.Bounded(t), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// withGit returns flags that bring the host's git into a sandbox of the same distribution:
// the image has none.
func withGit(t *testing.T) []string {
	t.Helper()
	program, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	libraries, err := filepath.Glob("/usr/lib/*-linux-gnu")
	if err != nil || len(libraries) != 1 {
		t.Fatalf("the host's libraries: %v, %v", libraries, err)
	}
	flags := []string{"--allow-dangerous-mounts", "--mount", program + ":/usr/local/bin/git", "--mount", git(t, "/", "--exec-path") + ":/git-core", "--mount", libraries[0] + ":/libraries"}
	for _, v := range []string{"GIT_EXEC_PATH=/git-core", "LD_LIBRARY_PATH=/libraries", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"} {
		flags = append(flags, "--env", v)
	}
	return flags
}

// project makes a repository with what the host executes, and a worktree beside it.
func project(t *testing.T, in *harness.Install) string {
	t.Helper()
	dir := write(t, in, "project", map[string]string{
		"main.c": "int main;\n", "agbox.yaml": "image: " + harness.ImageDebian + "\n", ".devcontainer/devcontainer.json": "{}\n", "compose.yaml": "services: {}\n",
		".vscode/settings.json": "{}\n", ".idea/workspace.xml": "<x/>\n", ".envrc": "true\n", ".npmrc": "a=b\n",
		".claude/settings.json": "{}\n", ".claude/hooks/start.sh": "true\n", ".mcp.json": "{}\n", ".husky/pre-commit": "true\n", ".cargo/config.toml": "\n", "mise.toml": "\n",
		".zed/tasks.json": "[]\n", ".yarnrc.yml": "a: b\n", ".codex/config.toml": "\n", "AGENTS.md": "Be kind.\n",
	})
	git(t, dir, "init", "-q", "-b", "main")
	write(t, in, "project", map[string]string{".git/info/attributes": "*.x binary\n"})
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "first")
	git(t, dir, "worktree", "add", "-q", filepath.Join(in.Home, "tree"), "-b", "tree")
	return dir
}

// demo makes an install with a project, and the sandbox demo, whose flags end with the one that
// takes the project.
func demo(t *testing.T, flags ...string) (in *harness.Install, dir string) {
	t.Helper()
	in = harness.New(t)
	dir = project(t, in)
	in.Create(t, "demo", harness.ImageDebian, append(flags, dir)...)
	return in, dir
}

// answered answers the question of a command, and returns its exit code.
func answered(p *harness.Terminal, question, answer string) int {
	p.Await(question)
	p.Types(answer + "\n")
	return p.Wait()
}

// changes are what a hostile sandbox tries, each as a script that prints nothing if it
// succeeds in changing what the host executes.
var changes = []string{
	"echo x >agbox.yaml", "rm agbox.yaml", "mv agbox.yaml other", "ln -sf /tmp/x agbox.yaml", "echo x >.devcontainer/devcontainer.json", "rm -r .devcontainer",
	"mv .devcontainer old", "echo x >compose.yaml", "echo x >.vscode/tasks.json", "mv .vscode old", "echo x >.idea/x", "echo x >.envrc", "echo x >.npmrc",
	"echo x >.git/hooks/post-checkout", "mv .git/hooks .git/old", "git config core.fsmonitor /tmp/x", "echo x >>.git/config", "rm -f .git/config",
	"mv .git .git2", "rm -rf .git/worktrees/tree/commondir", "echo x >.git/info/attributes", "mv .git/info .git/old",
	"echo x >.claude/settings.json", "rm -r .claude", "echo x >.claude/hooks/start.sh", "echo x >.mcp.json", "echo x >.husky/pre-push", "mv .husky old", "echo x >.cargo/config.toml",
	"echo x >mise.toml", "echo x >.zed/tasks.json", "echo x >.yarnrc.yml", "echo x >.codex/config.toml", "umount .git/hooks", "mount -o remount,bind,rw .git/hooks",
}

func TestASandboxCannotChangeWhatTheHostExecutes(t *testing.T) {
	t.Parallel()
	Row(t, 4, "a mounted workspace is used to change hooks, settings and sandbox files")
	in, dir := demo(t, append(withGit(t), "--mount-workspace")...)
	for _, change := range changes {
		got := inside(t, in, "demo", "cd /workspace; ("+change+") >/dev/null 2>&1 && echo changed || echo refused")
		harness.WantSame(t, change, got, "refused\n")
	}
	if got := git(t, dir, "status", "--porcelain"); got != "" {
		t.Errorf("the project has changed:\n%s", got)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, ".git", "hooks")); err != nil || len(entries) == 0 {
		t.Errorf("the hooks: %v, %v", entries, err)
	}
}

func TestGitWorksInACoveredWorkspace(t *testing.T) {
	t.Parallel()
	Row(t, 4, "git commits, branches and stashes in a covered workspace")
	in, dir := demo(t, append(withGit(t), "--mount-workspace")...)
	inside(t, in, "demo", `set -e; cd /workspace
		echo two >>main.c; git commit -qam second; git checkout -qb topic; echo three >>main.c; git commit -qam third; git checkout -q main; git merge -q topic
		echo four >>main.c; git stash -q; git stash pop -q; git checkout -q -- main.c; git tag v1; git gc -q; git branch -qD topic`)
	harness.WantSame(t, "the history", git(t, dir, "log", "--format=%s"), "third\nsecond\nfirst")
	in.Must(t, "stop", "demo")
	in.Must(t, "start", "demo")
	harness.WantSame(t, "after a restart", inside(t, in, "demo", "cd /workspace; (echo x >.git/hooks/x) 2>/dev/null || echo refused"), "refused\n")
	// A worktree has a file in place of the folder.
	in.Create(t, "tree", harness.ImageDebian, "--mount-workspace", filepath.Join(in.Home, "tree"))
	harness.WantSame(t, "a worktree", inside(t, in, "tree", "cd /workspace; (echo x >.git) 2>/dev/null || echo refused; (mv .git y) 2>/dev/null || echo refused"), "refused\nrefused\n")
}

func TestCoversAreLiftedByFlagOnlyAndCannotBeAvoided(t *testing.T) {
	t.Parallel()
	Row(t, 4, "covers are avoided by a file, by a link and by a mount of a part")
	in := harness.New(t)
	dir := project(t, in)
	in.Must(t, "daemon", "start")
	write(t, in, "project", map[string]string{"agbox.yaml": "image: " + harness.ImageDebian + "\nworkspace: {source: ., mount: true}\nsecurity: {writable_config: true}\n"})
	if r := from(t, in, dir, "create", "--trust"); r.Code == 0 || !strings.Contains(r.Stderr, "--writable-config") || !strings.Contains(r.Stderr, "agbox.yaml:3") {
		t.Errorf("exit code %d, stderr %q", r.Code, r.Stderr)
	}
	for _, part := range []string{".git/hooks", ".git/config", ".vscode", ".envrc", "agbox.yaml"} {
		r := in.Agbox(t, "create", "--image", harness.ImageDebian, "--mount", dir+"/"+part+":/x:rw")
		if r.Code == 0 || !strings.Contains(r.Stderr, "--writable-config") {
			t.Errorf("%s: exit code %d, stderr %q", part, r.Code, r.Stderr)
		}
	}
	in.Create(t, "part", harness.ImageDebian, "--mount", dir+"/.git:/x:rw")
	harness.WantSame(t, "git's own folder", inside(t, in, "part", "(echo x >/x/hooks/x) 2>/dev/null || echo refused; (echo x >/x/config) 2>/dev/null || echo refused"), "refused\nrefused\n")
	in.Create(t, "lifted", harness.ImageDebian, "--mount-workspace", dir, "--writable-config")
	inside(t, in, "lifted", "cd /workspace; echo x >.git/hooks/x; echo x >.envrc; mv .vscode old")
	if text := in.Must(t, "inspect", "lifted"); !strings.Contains(text, "is not protected") {
		t.Errorf("inspect does not say so:\n%s", text)
	}
	if err := os.Symlink("old", filepath.Join(dir, ".vscode")); err != nil {
		t.Fatal(err)
	}
	if r := in.Agbox(t, "create", "--image", harness.ImageDebian, "--mount-workspace", dir); r.Code == 0 || !strings.Contains(r.Stderr, "symbolic link") {
		t.Errorf("a link: exit code %d, stderr %q", r.Code, r.Stderr)
	}
}

func TestCopyingBackNamesWhatTheHostWouldExecute(t *testing.T) {
	t.Parallel()
	Row(t, 4, "a copied workspace comes back with other hooks and settings")
	Row(t, 111, "a repository comes by cp, whole or in parts")
	in, dir := demo(t, "--workspace")
	inside(t, in, "demo", `cd /workspace; echo x >.git/hooks/post-merge; echo "[core] fsmonitor = /tmp/x" >>.git/config; echo x >agbox.yml; echo two >main.c; echo x >.claude/settings.json
		mkdir sub; ln -s /tmp/x sub/.envrc; echo x >sub/config; mkdir -p bare/objects bare/refs; echo 'ref: refs/heads/main' >bare/HEAD; echo x >bare/config; echo x >bare/refs/x`)
	want := "A .git/hooks/post-merge\nA agbox.yml\nA bare/\nA sub/.envrc\nM .claude/settings.json\nM .git/config"
	named := func(stderr string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(stderr) {
			line = strings.TrimSpace(strings.TrimPrefix(line, "agbox:"))
			if kind, path, ok := strings.Cut(line, " "+dir+"/"); ok && len(kind) == 1 {
				name, _, _ := strings.Cut(path, "  (")
				got = append(got, kind+" "+name)
			}
		}
		slices.Sort(got)
		harness.WantSame(t, "what is named", strings.Join(got, "\n"), want)
	}
	config, before := filepath.Join(dir, ".git/config"), git(t, dir, "config", "--list", "--local")
	r := in.Agbox(t, "cp", "demo:/workspace/.", dir).Want(t, 1)
	named(r.Stderr)
	wantThere(t, dir, true, "main.c", "sub/config", "bare/config")
	wantThere(t, dir, false, ".git/hooks/post-merge", "agbox.yml", "sub/.envrc")
	notBare := func() {
		t.Helper()
		if repositoryAt(t, filepath.Join(dir, "bare")) {
			t.Error("git takes a folder of the sandbox for a repository")
		}
	}
	notBare()
	harness.WantSame(t, "the changes", git(t, dir, "diff", "--name-only"), "main.c")
	harness.WantSame(t, "the settings", git(t, dir, "config", "--list", "--local"), before)
	if code := answered(in.OnTerminal(t, "cp", "demo:/workspace/.", dir), "Bring them too?", "n"); code != 1 {
		t.Errorf("a no ends with %d", code)
	}
	wantThere(t, dir, false, "agbox.yml")
	notBare()
	// A part alone is asked about too, and a repository in a new folder is one question.
	for _, part := range []string{"HEAD", "objects", "refs"} {
		in.Agbox(t, "cp", "demo:/workspace/bare/"+part, filepath.Join(dir, "bare"))
	}
	notBare()
	in.Agbox(t, "cp", "demo:/workspace/.git/config", config).Want(t, 1)
	fresh := filepath.Join(in.Home, "fresh")
	r = in.Agbox(t, "cp", "demo:/workspace", fresh).Want(t, 1)
	if !strings.Contains(r.Stderr, " A "+fresh+"/.git/  (git, ") || strings.Contains(r.Stderr, ".git/hooks") {
		t.Errorf("a new repository: %s", r.Stderr)
	}
	wantThere(t, fresh, false, ".git")
	if code := answered(in.OnTerminal(t, "cp", "demo:/workspace/.", fresh), "Bring them too?", "y"); code != 0 {
		t.Errorf("a yes ends with %d", code)
	}
	wantThere(t, fresh, true, ".git/hooks/post-merge", ".git/refs", "bare/HEAD", "bare/refs", "bare/objects", ".claude/settings.json")
	line := in.Agbox(t, "cp", "--yes-executable", "demo:/workspace/.", dir).Want(t, 0).Stderr
	named(strings.NewReplacer(": ", "\n", ", A ", "\nA ", ", M ", "\nM ", " (", "  (").Replace(line))
	wantThere(t, dir, true, ".git/hooks/post-merge", "agbox.yml", "bare/refs")
	if r := in.Agbox(t, "cp", "demo:/workspace/.", dir).Want(t, 0); r.Stderr != "" { // nothing is new
		t.Errorf("once more: %s", r.Stderr)
	}
}

func TestAMountedWorkspaceOfAnotherUserIsNoDubiousOwnership(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := project(t, in)
	if out, err := exec.CommandContext(harness.Bounded(t), "chown", "-R", "4321:4321", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	settings := filepath.Join(write(t, in, "settings", map[string]string{"gitconfig": "[alias]\n\tlast = log -1 --format=%s"}), "gitconfig")
	flags := append(withGit(t), "--mount-workspace", dir)
	in.Create(t, "plain", harness.ImageDebian, flags...)
	for _, user := range []string{"0", "1000"} {
		harness.WantSame(t, "git of user "+user, in.Must(t, "exec", "--user", user, "plain", "--", "git", "-C", "/workspace", "log", "--format=%s"), "first")
	}
	// Settings that are there stay, and what cannot be written is no reason to fail.
	in.Create(t, "settings", harness.ImageDebian, append(flags, "--copy", settings+":/etc/gitconfig")...)
	harness.WantSame(t, "with other settings", inside(t, in, "settings", "cd /workspace; git last; git config --system --get-all safe.directory"), "first\n*\n")
	in.Create(t, "fixed", harness.ImageDebian, append(flags, "--read-only")...)
	inside(t, in, "fixed", "test ! -e /etc/gitconfig")
}
