package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// hostile changes a workspace so that programs of the host would execute what it says, beside
// honest work. A folder that git takes for a repository has no .git.
const hostile = `set -e; cd /workspace; echo two >main.c; echo x >.claude/settings.json; echo x >>AGENTS.md; rm .npmrc; mkdir sub; echo x >sub/.ENVRC; ln -s x .gemini
	mkdir -p lib/evil/objects lib/evil/refs lib/evil/src; cd lib/evil; echo 'ref: refs/heads/main' >HEAD; printf '[core]\n\tfsmonitor = /tmp/x\n' >config; echo x >objects/x; echo x >refs/x; echo x >src/a`

// wantThere checks which of some files a folder has.
func wantThere(t *testing.T, dir string, there bool, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// repositoryAt reports whether the git of the host takes a folder for one of its own.
func repositoryAt(t *testing.T, dir string) bool {
	t.Helper()
	return git(t, dir, "rev-parse", "--git-dir") == "."
}

func TestWorkThatTheHostWouldExecuteIsAskedAbout(t *testing.T) {
	t.Parallel()
	Row(t, 110, "settings of agents and editors come home with the work, by apply and pull")
	Row(t, 111, "a bare repository comes home with the work, whole or in two parts")
	in, dir := demo(t, "--workspace")
	inside(t, in, "demo", hostile)
	held := []string{"AGENTS.md", ".claude/settings.json", ".npmrc", "sub/.ENVRC", ".gemini", "lib/evil/"}
	named := func(out string) {
		t.Helper()
		for _, want := range held {
			if !strings.Contains(out, " "+want+"  (") {
				t.Errorf("%s is not shown: %s", want, out)
			}
		}
	}
	stay := func() {
		t.Helper()
		wantThere(t, dir, true, ".npmrc")
		wantThere(t, dir, false, "sub/.ENVRC", ".gemini", "lib/evil/HEAD", "lib/evil/config", "lib/evil/objects", "lib/evil/refs")
		harness.WantSame(t, "the changes of the project", git(t, dir, "diff", "--name-only"), "main.c")
	}
	named(in.Agbox(t, "apply", "demo", "--check").Want(t, 0).Stderr)
	r := in.Agbox(t, "apply", "demo").Want(t, 1)
	named(r.Stderr)
	harness.WantSame(t, "what comes", r.Stdout, "A lib/evil/src/a\nM main.c\n")
	stay()
	if repositoryAt(t, filepath.Join(dir, "lib/evil")) {
		t.Error("git takes a folder of the sandbox for a repository")
	}
	for _, command := range []string{"pull", "apply"} {
		r := in.Agbox(t, command, "demo").Want(t, 1)
		named(r.Stderr)
		harness.WantSame(t, "what comes then", r.Stdout, "")
	}
	in.Agbox(t, "rm", "demo").Want(t, 4) // what was left out is work
	if code := answered(in.OnTerminal(t, "apply", "demo"), "Bring them too?", "n"); code != 1 {
		t.Errorf("a no ends with %d", code)
	}
	stay()
	// A repository in two parts: the first is harmless, and the second completes it.
	inside(t, in, "demo", "set -e; cd /workspace; mkdir -p parts/objects parts/refs; echo x >parts/objects/x; echo x >parts/refs/x")
	harness.WantSame(t, "the first part", in.Agbox(t, "apply", "demo", "parts").Want(t, 0).Stdout, "A parts/objects/x\nA parts/refs/x\n")
	inside(t, in, "demo", "cd /workspace/parts; echo 'ref: refs/heads/main' >HEAD; echo >config")
	if r := in.Agbox(t, "apply", "demo", "parts").Want(t, 1); !strings.Contains(r.Stderr, " A parts/  (git, ") {
		t.Errorf("the second part: %s", r.Stderr)
	}
	wantThere(t, dir, false, "parts/HEAD", "parts/config")
	// A yes brings them.
	if code := answered(in.OnTerminal(t, "apply", "demo", "sub"), "Bring them too?", "y"); code != 0 {
		t.Errorf("a yes ends with %d", code)
	}
	wantThere(t, dir, true, "sub/.ENVRC")
	in.Must(t, "pull", "demo", "--yes-executable")
	wantThere(t, dir, true, "parts/HEAD", "lib/evil/config", ".gemini")
	wantThere(t, dir, false, ".npmrc")
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "", "agbox: There is nothing new in sandbox demo.\n")
}

func TestABranchGetsNothingUnaskedThatTheHostWouldExecute(t *testing.T) {
	t.Parallel()
	Row(t, 110, "settings of agents and editors come home on a branch")
	in, dir := demo(t, "--workspace")
	inside(t, in, "demo", hostile)
	git(t, dir, "config", "user.name", "a")
	git(t, dir, "config", "user.email", "a@b")
	if r := in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 1); !strings.Contains(r.Stderr, "Branch fix has the work") {
		t.Errorf("apply says %s", r.Stderr)
	}
	harness.WantSame(t, "the branch", git(t, dir, "diff", "--name-only", "main", "fix"), "lib/evil/src/a\nmain.c")
	in.Must(t, "apply", "demo", "--branch", "fix", "--yes-executable")
	if got := git(t, dir, "diff", "--name-only", "main", "fix"); !strings.Contains(got, ".claude/settings.json") {
		t.Errorf("after a yes it has %s", got)
	}
}

func TestASyncBringsNothingUnaskedThatTheHostWouldExecute(t *testing.T) {
	t.Parallel()
	Row(t, 110, "settings of agents and editors come home by sync and sync --watch")
	Row(t, 111, "a bare repository comes home by sync")
	in, dir := demo(t, "--workspace")
	inside(t, in, "demo", hostile)
	lines := `!! U .claude/settings.json  (conflict: not brought without a yes: Claude Code, when it starts in the folder, and at its events)
!! U .gemini  (conflict: not brought without a yes: Gemini CLI, when it starts in the folder)
!! U .npmrc  (conflict: not brought without a yes: npm, pnpm, when it installs packages or runs a script)
!! U AGENTS.md  (conflict: not brought without a yes: agents, which read them as instructions, when they start in the folder)
!! U lib/evil  (conflict: not brought without a yes: git, takes it for a repository, and executes its settings at any command in it)
!! U sub/.ENVRC  (conflict: not brought without a yes: direnv, when a shell enters the folder)
`
	harness.WantSame(t, "the lines", in.Agbox(t, "sync", "demo").Want(t, 1).Stdout, lines+"<- A lib/evil/src/a\n<- M main.c\n")
	harness.WantSame(t, "later lines", in.Agbox(t, "sync", "demo").Want(t, 1).Stdout, lines)
	harness.WantSame(t, "the project", git(t, dir, "diff", "--name-only"), "main.c")
	// What both sides have is in step, and what both have changed stays on both.
	write(t, in, "project", map[string]string{"sub/.ENVRC": "x\n", ".claude/settings.json": "mine\n"})
	r := in.Agbox(t, "sync", "demo").Want(t, 1)
	if strings.Contains(r.Stdout, "ENVRC") || !strings.Contains(r.Stderr, " 5 conflicts.") {
		t.Errorf("sync says %s%s", r.Stdout, r.Stderr)
	}
	harness.WantSame(t, "both sides", inside(t, in, "demo", "cat /workspace/.claude/settings.json")+in.Must(t, "exec", "demo", "cat", "/workspace/sub/.ENVRC"), "x\nx")
	p := in.Start(t, "sync", "--watch", "demo")
	p.AwaitOutput(t, "!! U lib/evil")
	inside(t, in, "demo", "cd /workspace; echo x >.husky/pre-push; echo three >main.c")
	p.AwaitOutput(t, "<- M main.c\n")
	p.AwaitOutput(t, "!! U .husky/pre-push")
	p.Signal(t, syscall.SIGINT)
	p.Wait(t).Want(t, 1)
	wantThere(t, dir, false, ".husky/pre-push", "lib/evil/HEAD", ".gemini")
	if code := answered(in.OnTerminal(t, "sync", "demo"), "Bring them too?", "y"); code != 1 { // of the file that both have changed
		t.Errorf("a yes ends with %d", code)
	}
	wantThere(t, dir, true, ".husky/pre-push", "lib/evil/HEAD", ".gemini")
}
