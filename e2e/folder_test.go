package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// worker makes an image with a claude that adds its arguments to the file a, and returns the
// environment for it.
func worker(t *testing.T, in *install) []string {
	t.Helper()
	image := "agbox-test/worker-" + strings.ToLower(ids.New()) + ":1"
	folder := in.write(t, "worker", map[string]string{
		"Dockerfile": "FROM " + harness.ImageBusybox + "\nCOPY claude /bin/claude\nRUN chmod +x /bin/claude\n",
		"claude":     "#!/bin/sh\necho \"$(hostname) $*\"\nfor word; do last=$word; done\necho $last >>a\n",
	})
	in.from(t, "/", nil, "image", "build", "-t", image, folder).Want(t, 0)
	in.RemoveImage(image)
	return []string{"HOME=" + in.write(t, "people/me", nil), "AGBOX_CLAUDE_IMAGE=" + image, "ANTHROPIC_API_KEY=0123456789-0123456789"}
}

func TestAnAgentGoesOnInTheSandboxOfItsFolder(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	env := worker(t, in)
	dir := in.write(t, "My Shop", map[string]string{"a": "one\n"})
	runs := func(dir, want string, args ...string) harness.Result {
		t.Helper()
		r := in.from(t, dir, env, append([]string{"claude"}, args...)...).Want(t, 0)
		if !strings.HasPrefix(r.Stdout, want+" ") {
			t.Errorf("claude %v runs in %q, want %s; it says\n%s", args, r.Stdout, want, r.Stderr)
		}
		return r
	}
	says := func(r harness.Result, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(r.Stderr, text) {
				t.Errorf("%v does not say %q:\n%s", r.Args, text, r.Stderr)
			}
		}
	}
	says(runs(dir, "my-shop-claude", "--", "two"), "`agbox claude` goes on in it")
	second := runs(dir, "my-shop-claude", "--", "three")
	says(second, "Taking up sandbox my-shop-claude, made ", ", with 1 changed file (a) not brought home. `agbox claude --new` makes another.")
	if strings.Contains(second.Stderr, "It was made from another version") {
		t.Errorf("what has not changed is said to have:\n%s", second.Stderr)
	}
	harness.WantSame(t, "the work", in.inside(t, "my-shop-claude", "cat a"), "one\ntwo\nthree\n")

	// A link to the folder is the folder. A stopped sandbox is started.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	says(in.from(t, link, append(env, "PWD="+link), "stop").Want(t, 2), "Without a terminal, agbox stop takes only what is named: give my-shop-claude.")
	in.Must(t, "stop", "my-shop-claude")
	says(runs(link, "my-shop-claude", "--memory", "512m", "--", "four"), "Taking up sandbox my-shop-claude", "or with other flags and variables (memory_limit), and stays as it is.")

	// Verbs in the folder, or below it, mean its sandbox.
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, changed := range map[string]string{dir: "a\n", filepath.Join(dir, "sub"): "../a\n"} {
		diff := in.from(t, dir, nil, "diff", "--name-only").Want(t, 0)
		harness.WantSame(t, "what has changed", diff.Stdout, changed)
		harness.WantSame(t, "what a script is told", diff.Stderr, "")
	}
	for _, c := range []struct {
		dir  string
		says bool
		args []string
	}{
		{dir, false, []string{"diff", "--stat"}}, {filepath.Join(dir, "sub"), true, []string{"diff", "--stat"}},
		{dir, false, []string{"exec", "--", "true"}}, {dir, true, []string{"start"}},
	} {
		p := in.OnTerminalIn(t, c.dir, nil, c.args...)
		if code, screen := p.Wait(), p.Screen(); code != 0 || strings.Contains(screen, "Using sandbox my-shop-claude of ") != c.says {
			t.Errorf("in %s, %v ends with %d and shows %q", c.dir, c.args, code, screen)
		}
	}
	shell := in.OnTerminalIn(t, dir, nil, "shell")
	shell.Says("hostname", "here")
	shell.Await("\r\nmy-shop-claude\r\n")
	shell.Types("exit\n")
	if code := shell.Wait(); code != 0 {
		t.Errorf("shell ends with %d: %s", code, shell.Screen())
	}
	harness.WantSame(t, "a path after --", in.from(t, dir, nil, "diff", "--name-only", "--", "sub").Want(t, 0).Stdout, "")
	harness.WantSame(t, "a path of the folder", in.from(t, dir, nil, "diff", "--name-only", "a").Want(t, 0).Stdout, "a\n")
	harness.WantSame(t, "a command", in.from(t, dir, nil, "exec", "--", "hostname").Want(t, 0).Stdout, "my-shop-claude\n")
	harness.WantSame(t, "a command that can be no name", in.from(t, dir, nil, "exec", "--", "/bin/hostname").Want(t, 0).Stdout, "my-shop-claude\n")
	in.Must(t, "create", "hostname", "--image", harness.ImageBusybox)
	harness.WantSame(t, "a command that a sandbox is called like", in.from(t, dir, nil, "exec", "--", "hostname").Want(t, 0).Stdout, "my-shop-claude\n")
	in.Must(t, "rm", "hostname")
	harness.WantSame(t, "the newest output", in.from(t, dir, nil, "logs").Want(t, 0).Stdout, "my-shop-claude\n")
	in.from(t, dir, nil, "apply").Want(t, 0)
	wantFile(t, filepath.Join(dir, "a"), "one\ntwo\nthree\nfour\n")
	in.from(t, dir, nil, "sync").Want(t, 0)
	in.from(t, dir, nil, "start").Want(t, 0)
	if list := in.Must(t, "ls"); !strings.Contains(list, "FOLDER") || !strings.HasSuffix(list, "/My Shop") {
		t.Errorf("ls shows\n%s", list)
	}

	// A removal needs a name, or a person.
	says(in.from(t, dir, nil, "rm", "-f").Want(t, 2), "Without a terminal, agbox rm takes only what is named: give my-shop-claude.")
	asked := in.OnTerminalIn(t, dir, nil, "rm")
	asked.Await("Remove sandbox my-shop-claude? [y/N] ")
	asked.Types("n\n")
	if code := asked.Wait(); code != 4 {
		t.Errorf("after a no, rm ends with %d: %s", code, asked.Screen())
	}
	in.inside(t, "my-shop-claude", "echo work > new")
	once := in.OnTerminalIn(t, dir, nil, "rm") // one question, which names what is lost
	once.Await("would lose 1 changed file (new).")
	once.Await("Remove it anyway? [y/N] ")
	once.Types("y\n")
	if code := once.Wait(); code != 0 || strings.Contains(once.Screen(), "Remove sandbox") {
		t.Errorf("after a yes, rm ends with %d: %s", code, once.Screen())
	}
	runs(dir, "my-shop-claude")
	forced := in.OnTerminalIn(t, dir, nil, "rm", "-f") // a variable after it may have been empty
	forced.Await("Remove sandbox my-shop-claude? [y/N] ")
	forced.Types("n\n")
	if code := forced.Wait(); code != 4 {
		t.Errorf("after a no, rm -f ends with %d: %s", code, forced.Screen())
	}

	// Another one has the next name, and is meant from then on. One of another folder too.
	runs(dir, "my-shop-claude-2", "--new")
	says(runs(dir, "my-shop-claude-2"), "Taking up sandbox my-shop-claude-2")
	says(runs(dir, "my-shop-claude", "--name", "my-shop-claude"), "Taking up sandbox my-shop-claude,")
	runs(in.write(t, "other/my-shop", map[string]string{"a": ""}), "my-shop-claude-3")
	says(in.from(t, dir, nil, "diff").Want(t, 2), " has 2 sandboxes: my-shop-claude-2 (ready, made ", ", my-shop-claude (ready, made ", "Name the one that is meant.")
	runs(dir, "my-shop-claude-4", "--rm")
	in.Must(t, "rm", "-f", "my-shop-claude", "my-shop-claude-2", "my-shop-claude-3")
	for _, verb := range []string{"diff", "apply", "pull", "sync", "logs", "stop", "start", "restart", "rm"} {
		says(in.from(t, dir, nil, verb).Want(t, 3), " has no sandbox. Name one of `agbox ls`, or make one here with `agbox up` or `agbox claude`.")
	}
}

func TestWhoGoesOnInASandboxHearsOfItsCommits(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	env := worker(t, in)
	dir := in.write(t, "shop", map[string]string{"a": "one\n", ".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": strings.Repeat("1", 40) + "\n"})
	in.from(t, dir, env, "claude", "--", "two").Want(t, 0)
	in.Must(t, "apply", "shop-claude")
	in.inside(t, "shop-claude", "echo "+strings.Repeat("2", 40)+" > /workspace/.git/refs/heads/agent")
	r := in.from(t, dir, env, "claude", "--", "--version").Want(t, 0)
	if want := "with commits of 1 other branch (agent up to 222222222222) not brought home."; !strings.Contains(r.Stderr, want) {
		t.Errorf("it does not say %q:\n%s", want, r.Stderr)
	}
}

// TestAFolderThatWasMovedGetsItsSandboxBack by the link that a message advises.
func TestAFolderThatWasMovedGetsItsSandboxBack(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "old shop", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n", "a": "one\n"})
	id := in.from(t, dir, nil, "up", "--trust").Want(t, 0).Stdout
	in.inside(t, "old-shop", "echo two > a")
	now := filepath.Join(filepath.Dir(dir), "shop")
	if err := os.Rename(dir, now); err != nil {
		t.Fatal(err)
	}
	if list := in.Must(t, "ls"); !strings.HasSuffix(list, "/old shop (gone)") {
		t.Errorf("ls shows\n%s", list)
	}
	link := "ln -s " + now + " '" + dir + "'"
	if said := in.from(t, now, nil, "diff").Want(t, 3).Stderr; !strings.Contains(said, "There are sandboxes of folders that are gone: old-shop of "+dir+".") || !strings.Contains(said, "`"+link+"`") {
		t.Errorf("diff says %q", said)
	}
	if out, err := exec.CommandContext(harness.Bounded(t), "sh", "-c", link).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v, %s", link, err, out)
	}
	harness.WantSame(t, "what has changed", in.from(t, now, nil, "diff", "--name-only").Want(t, 0).Stdout, "a\n")
	in.from(t, now, nil, "apply", "--", "a").Want(t, 0)
	wantFile(t, filepath.Join(now, "a"), "two\n")
	in.from(t, now, nil, "sync").Want(t, 0)
	harness.WantSame(t, "the sandbox of the folder", in.from(t, now, nil, "up", "--name", "old-shop").Want(t, 0).Stdout, id)
	if list := in.Must(t, "ls"); !strings.HasSuffix(list, "/old shop") {
		t.Errorf("ls shows\n%s", list)
	}
	// A link to another folder gives that no sandbox: a sandbox may have put it there.
	other := in.write(t, "other", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n"})
	if err := errors.Join(os.Remove(dir), os.Symlink(other, dir)); err != nil {
		t.Fatal(err)
	}
	in.from(t, other, nil, "diff").Want(t, 3)
	in.from(t, other, nil, "up", "--name", "old-shop").Want(t, 1)
}

// TestASandboxThatIsTakenUpKeepsSettingsOut: an agent that goes on gets the settings of its
// folder only if they were agreed to when the sandbox was made, and are now.
func TestASandboxThatIsTakenUpKeepsSettingsOut(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	env := worker(t, in)
	for name, c := range map[string]struct{ first, then []string }{
		"changed": {[]string{"--trust"}, nil}, "off": {nil, []string{"--trust"}},
	} {
		dir := in.write(t, name, map[string]string{"a": "", ".claude/settings.json": "{}"})
		first := in.from(t, dir, env, append([]string{"claude"}, c.first...)...).Want(t, 0)
		if off := strings.Contains(first.Stdout, "--setting-sources user"); off != (name == "off") {
			t.Errorf("%s: at first %s", name, first.Stdout)
		}
		in.write(t, name, map[string]string{".claude/settings.json": "{\"hooks\": {}}"})
		then := in.from(t, dir, env, append([]string{"claude"}, c.then...)...).Want(t, 0)
		if !strings.Contains(then.Stderr, "Taking up sandbox "+name+"-claude") || !strings.Contains(then.Stdout, "--setting-sources user") {
			t.Errorf("%s: then %s\n%s", name, then.Stdout, then.Stderr)
		}
	}
}

func TestUnnamedSandboxesGetNamesThatCanBeTyped(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	id := strings.TrimSpace(in.Must(t, "create", "--image", harness.ImageBusybox))
	name := strings.TrimSpace(in.Must(t, "ls", "--format", "{{.name}}"))
	harness.WantSame(t, "the sandbox by its name", in.Must(t, "exec", name, "--", "hostname"), name)
	if again := in.Must(t, "create", "--image", harness.ImageBusybox, "--id", "mine"); strings.TrimSpace(again) != "mine" || in.Must(t, "create", "--image", harness.ImageBusybox, "--id", "mine") != again {
		t.Error("a create with an id cannot be repeated")
	}
	in.Must(t, "rm", id, "mine")
}

func TestALabelOfAgboxInASandboxFileIsRefused(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "bad", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\nlabels: {agbox.preset: claude}\n"})
	r := in.from(t, dir, nil, "create", "--trust").Want(t, 2)
	if !strings.Contains(r.Stderr, "agbox.yaml:2") || !strings.Contains(r.Stderr, `Labels that begin with "agbox." are set by agbox itself: remove it`) {
		t.Errorf("it says\n%s", r.Stderr)
	}
}

func TestWhatIsIgnoredIsSaidToBeCopiedOrLeftOut(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	env := worker(t, in)
	dir := in.write(t, "shop", map[string]string{"a": "", ".gitignore": ".env\n/dist/\n", ".env": "KEY=1\n", "dist/x": "", "dist/y": "", "new": ""})
	for _, args := range [][]string{{"init", "-q"}, {"add", ".gitignore", "a"}} {
		if out, err := exec.CommandContext(harness.Bounded(t), "git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v, %s", args, err, out)
		}
	}
	r := in.from(t, dir, env, "claude").Want(t, 0)
	if !strings.Contains(r.Stderr, "The copy has 3 files that a .gitignore names, .env, dist/ among them. --tracked copies only what git tracks") {
		t.Errorf("it says\n%s", r.Stderr)
	}
	if said := in.from(t, dir, env, "claude", "--rm", "--use-gitignore").Want(t, 0).Stderr; strings.Contains(said, "The copy has") {
		t.Errorf("without ignored files it says\n%s", said)
	}
	in.from(t, dir, env, "claude", "--new", "--tracked").Want(t, 0)
	harness.WantSame(t, "what git tracks", in.inside(t, "shop-claude-2", "ls -A; cat .git/HEAD | cut -c 1-4"), ".git\n.gitignore\na\nref:\n")
	harness.WantSame(t, "the sync", in.Agbox(t, "sync", "shop-claude-2").Want(t, 0).Stdout, "<- M a\n")
	if out, err := exec.CommandContext(harness.Bounded(t), "git", "-C", dir, "add", "new").CombinedOutput(); err != nil {
		t.Fatalf("git add: %v, %s", err, out)
	}
	harness.WantSame(t, "once git tracks it", in.Agbox(t, "sync", "shop-claude-2").Want(t, 0).Stdout, "-> A new\n")
}
