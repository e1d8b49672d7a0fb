package e2e

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestDiffShowsWhatASandboxChanged(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		"main.go": "one\ntwo\nthree\n", "old/name": "moved as it is\n", "gone": "gone\n", "run.sh": "#!/bin/sh\n",
		".gitignore": "*.o\n/build/\n.env\n", ".env": "secret\n", "kept/a": "a\n", ".git/config": "[core]\n", "data": "\x00\x01",
	})
	if err := os.Symlink("main.go", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.Agbox(t, "diff", "demo").Want(t, 0).WantOutput(t, "", "")
	in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
	in.inside(t, "demo", `cd /workspace
printf 'one\n2\nthree\n' > main.go; mkdir new; mv old/name new/name; rm gone; chmod +x run.sh; echo more >> .env
mkdir build empty; echo x > build/out; echo y > a.o; echo b > kept/b; ln -sfn /etc/passwd link; printf '\000\002' > data
printf '[core]\n\thooksPath=/x\n' > .git/config; mkdir -p .git/hooks .GIT; echo x > .git/hooks/pre-commit; echo x > .GIT/config; mkfifo pipe`)
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, ".env\ndata\ngone\nkept/b\nlink\nmain.go\nnew/name\nrun.sh\n", "")
	in.Agbox(t, "diff", "demo", "--name-only", "--all").WantOutput(t, ".env\na.o\nbuild/out\ndata\ngone\nkept/b\nlink\nmain.go\nnew/name\nrun.sh\n", "")
	in.Agbox(t, "diff", "demo", "--name-only", "kept", "new/").WantOutput(t, "kept/b\nnew/name\n", "")
	in.Agbox(t, "diff", "demo", "--stat", "--exit-code").Want(t, 1)
	stat := in.Agbox(t, "diff", "demo", "--stat").Want(t, 0).Stdout
	for _, want := range []string{" main.go              |   2 +-\n", " data                 | Bin 2 -> 2 bytes\n", " old/name => new/name |   0\n", " 8 files changed, 4 insertions(+), 3 deletions(-)\n"} {
		if !strings.Contains(stat, want) {
			t.Errorf("--stat lacks %q:\n%s", want, stat)
		}
	}
	// The patch makes the same of a copy of the folder.
	patch := in.Agbox(t, "diff", "demo").Want(t, 0).Stdout
	apply := exec.CommandContext(t.Context(), "git", "apply", "-")
	apply.Dir, apply.Stdin = dir, strings.NewReader(patch)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v: %s\n%s", err, out, patch)
	}
	wantFile(t, filepath.Join(dir, "main.go"), "one\n2\nthree\n")
	wantFile(t, filepath.Join(dir, "new/name"), "moved as it is\n")
	wantFile(t, filepath.Join(dir, ".git/config"), "[core]\n")
	wantFile(t, filepath.Join(dir, "data"), "\x00\x02")
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "/etc/passwd" {
		t.Errorf("the link leads to %s: %v", to, err)
	}
}

// TestNamesOfFilesAreThoseOfWhereOneStands gives back what it prints.
func TestNamesOfFilesAreThoseOfWhereOneStands(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"src/a": "a\n", "b": "b\n", "src/both": "one\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "cd /workspace; echo new >src/a; echo new >b; echo theirs >src/both; ln -s /etc src/out; echo x >.envrc")
	if err := os.WriteFile(filepath.Join(dir, "src/both"), []byte("ours\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	there := func(args ...string) (out, errs string) {
		t.Helper()
		cmd := in.Command(harness.Bounded(t), "agbox", args...)
		var said, told strings.Builder
		cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(dir, "src"), &said, &told
		_ = cmd.Run() // conflicts are an exit code
		return said.String(), told.String()
	}
	if got, _ := there("diff", "demo", "--name-only"); got != "../.envrc\n../b\na\nboth\nout\n" {
		t.Errorf("the names are %q", got)
	}
	if got, _ := there("diff", "demo", "--stat", "../b"); !strings.HasPrefix(got, " ../b |   2 +-\n") {
		t.Errorf("--stat says %q", got)
	}
	if got, _ := there("diff", "demo", "a"); !strings.HasPrefix(got, "diff --git a/src/a b/src/a\n") {
		t.Errorf("the patch begins with %q", got)
	}
	out, errs := there("apply", "demo", ".", "../b", "../.envrc")
	if want := "M ../b\nM a\nU both  (conflict: both have changed the same lines; see the markers)\nA out\n"; out != want {
		t.Errorf("apply prints %q, want %q", out, want)
	}
	for _, want := range []string{"agbox:   out -> /etc\n", "agbox:   A ../.envrc  (direnv"} {
		if !strings.Contains(errs, want) {
			t.Errorf("apply says %q, which lacks %q", errs, want)
		}
	}
	if _, errs := there("apply", "demo", "--abort", "both"); strings.Contains(errs, "no conflicts") {
		t.Errorf("--abort says %q", errs)
	}
	wantFile(t, filepath.Join(dir, "src/both"), "ours\n")
}

// A typing error in a path is no work that is not there.
func TestAPathThatExistsOnNeitherSideIsAnError(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "a\n", "gone": "x\n", "here": "x\n", "sub/left": "x\n", ".gitignore": "built\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "cd /workspace; echo new >a; rm sub/left; mkdir built new; touch built/x new/x")
	for _, name := range []string{"gone", "sub"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, verb := range []string{"apply", "pull", "diff"} {
		for _, path := range []string{"nosuch", "a/b", "su", "../a", "/a"} {
			r := in.Agbox(t, verb, "demo", "a", path).Want(t, 3)
			if !strings.Contains(r.Stderr, "There is no "+path+", neither in "+dir+" nor in the workspace of the sandbox.") {
				t.Errorf("%s %s says %q", verb, path, r.Stderr)
			}
		}
	}
	wantFile(t, filepath.Join(dir, "a"), "a\n")
	// What only one side has, or an ignored folder of the sandbox, is there.
	for _, path := range []string{"gone", "here", "sub/left", "sub", "built", "new/x", ".", dir + "/new/x", dir} {
		in.Agbox(t, "apply", "demo", "--check", path).Want(t, 0)
		in.Agbox(t, "diff", "demo", "--name-only", path).Want(t, 0)
	}
	in.Must(t, "apply", "demo", dir+"/a", "new", "sub/left")
	wantFile(t, filepath.Join(dir, "a"), "new\n")
}

// As "agbox diff | head" does: also if the caller ignores SIGPIPE.
func TestAReaderThatGoesAwayIsNoError(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "a\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "seq 200000 >/workspace/numbers")
	for _, words := range []string{"diff demo", "diff demo --stat", "ls", "ps -a", "inspect demo"} {
		for _, trap := range []string{"", "trap '' PIPE; "} {
			script := trap + in.Bin + "/agbox " + words + "; echo $? >&2"
			cmd := in.Command(harness.Bounded(t), "agbox")
			cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script}
			gone, to, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			_ = gone.Close() // nobody reads
			var said strings.Builder
			cmd.Stdout, cmd.Stderr = to, &said
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			_ = to.Close()
			if said.String() != "141\n" {
				t.Errorf("%sagbox %s says %q, want only the exit code of SIGPIPE", trap, words, said.String())
			}
		}
	}
}

func TestDiffSeesAFileWhoseTimeAndSizeAreAsBefore(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a/f": "one\n", "b/f": "two\n", "c": "abc\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", `cd /workspace; touch -r c ref; echo xyz > c; touch -r ref c; rm ref; mv a t; mv b a; mv t b`)
	// The files of renamed folders keep their change time.
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "a/f\nb/f\nc\n", "")
	in.Create(t, "mounted", harness.ImageUser, "--mount-workspace", dir)
	r := in.Agbox(t, "diff", "mounted").Want(t, 4)
	if !strings.Contains(r.Stderr, "No workspace was copied into sandbox") {
		t.Errorf("a mounted workspace: %s", r.Stderr)
	}
}

func TestTheBaseOutlivesTheDaemonAndGoesWithTheSandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n", "sub/b": "2\n"})
	id := strings.TrimSpace(in.Create(t, "demo", harness.ImageUser, "--workspace", dir))
	in.inside(t, "demo", "rm -r sub; echo 3 > c")
	in.Must(t, "daemon", "stop")
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "c\nsub/b\n", "")
	folders, err := filepath.Glob(filepath.Join(in.Home, "data/guest/*/base/index"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("the bases of %s are %v, %v", id, folders, err)
	}
	in.Must(t, "rm", "--wait", "-f", "demo")
	if _, err := os.Stat(filepath.Dir(folders[0])); !os.IsNotExist(err) {
		t.Errorf("the base is left: %v", err)
	}
	for _, command := range []string{"diff", "apply"} {
		in.Agbox(t, command, id).Want(t, 4).WantOutput(t, "", "agbox: Sandbox demo is deleted, and its workspace with it: there is nothing to compare.\n")
	}
}

// gitIn runs git in a folder.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(out)
}

// repository makes a folder with a repository of one commit. settings are KEY=VALUE.
func (in *install) repository(t *testing.T, files map[string]string, settings ...string) string {
	t.Helper()
	root := in.write(t, "project", files)
	gitIn(t, root, "init", "-q", "-b", "main")
	for _, one := range append([]string{"user.name=Ann", "user.email=ann@example.org"}, settings...) {
		key, value, _ := strings.Cut(one, "=")
		gitIn(t, root, "config", key, value)
	}
	gitIn(t, root, "add", ".")
	gitIn(t, root, "commit", "-q", "-m", "first")
	return root
}

func TestApplyMergesTheWorkAndCountsItAsBrought(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n2\n3\n4\n5\n", "b": "b\n", "c": "c\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", `cd /workspace; sed -i s/5/five/ a; echo theirs > b; mkdir n; mv c n/c; mkdir .vscode; echo x > .vscode/tasks.json; ln -s /etc/shadow out; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit`)
	in.write(t, "project", map[string]string{"a": "one\n2\n3\n4\n5\n", "b": "ours\n"})
	check := in.Agbox(t, "apply", "demo", "--check").Want(t, 1)
	wantFile(t, filepath.Join(dir, "b"), "ours\n")
	pull := in.Agbox(t, "pull", "demo").Want(t, 1)
	if !strings.Contains(pull.Stderr, "Nothing was changed in "+dir+": both sides have changed 2 files.") {
		t.Errorf("pull: %s", pull.Stderr)
	}
	in.Agbox(t, "pull", "demo", "n", "c").Want(t, 0).WantOutput(t, "D c\nR c => n/c\n", "")
	r := in.Agbox(t, "apply", "demo").Want(t, 1)
	harness.WantSame(t, "the outcome", r.Stdout, "M a  (merged)\nU b  (conflict: both have changed the same lines; see the markers)\nA out\n")
	if !strings.Contains(r.Stderr, "  A .vscode/tasks.json  (VS Code and its relatives, when it opens the folder, or starts a task of it)\n") || !strings.Contains(r.Stderr, "/out -> /etc/shadow") || !strings.Contains(check.Stdout, "U b  (conflict: both have changed the same lines)\n") || !strings.HasSuffix(check.Stderr, "agbox: 1 conflict. `agbox apply demo` brings the rest, and writes markers into files of text.\n") {
		t.Errorf("apply said %s%s%s", check.Stdout, check.Stderr, r.Stderr)
	}
	wantFile(t, filepath.Join(dir, "a"), "one\n2\n3\n4\nfive\n")
	const marked = "<<<<<<< folder\nours\n=======\ntheirs\n>>>>>>> sandbox demo\n"
	wantFile(t, filepath.Join(dir, "b"), marked)
	if r := in.Agbox(t, "apply", "demo", "b", "--check").Want(t, 1); !strings.HasSuffix(r.Stderr, "agbox: 1 conflict.\n") {
		t.Errorf("a check of an open conflict says %s", r.Stderr)
	}
	wantFile(t, filepath.Join(dir, "n/c"), "c\n")
	in.Agbox(t, "apply", "demo").Want(t, 1)
	harness.WantSame(t, "with a yes", in.Agbox(t, "apply", "demo", ".vscode", "--yes-executable").Want(t, 0).Stdout, "A .vscode/tasks.json\n")
	for _, name := range []string{".git", "c"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("there is %s: %v", name, err)
		}
	}
	// A conflict counts as changed until it is resolved.
	in.Agbox(t, "diff", "demo", "--name-only").Want(t, 0).WantOutput(t, "b\n", "")
	in.Agbox(t, "apply", "demo").Want(t, 1)
	wantFile(t, filepath.Join(dir, "b"), marked)
	in.Agbox(t, "sync", "demo").Want(t, 1).WantOutput(t, "!! U b  (conflict: an earlier one that is not resolved; see the markers)\n-> M a\n", "agbox: 1 change to the sandbox, 0 changes to the folder, 1 conflict.\nagbox: `agbox apply demo` merges the files in conflict into the folder.\n")
	in.write(t, "project", map[string]string{"b": "ours\n"})
	if r := in.Agbox(t, "sync", "demo").Want(t, 1); !strings.HasPrefix(r.Stdout, "!! U b  (conflict: an earlier one; the folder has nothing of the sandbox's version: --continue keeps that, ") {
		t.Errorf("sync of a conflict whose markers are gone says %s", r.Stdout)
	}
	in.write(t, "project", map[string]string{"b": marked})
	for text, why := range map[string]string{
		marked + "more\n": "the folder has changed it since the conflict",
		"ours\nmore\n":    "an earlier one; the folder has nothing of the sandbox's version: --continue keeps that, --again merges anew",
	} {
		in.write(t, "project", map[string]string{"b": text})
		in.Agbox(t, "apply", "demo", "--abort").Want(t, 1).WantOutput(t, "U b  (conflict: "+why+")\n", "agbox: 1 conflict left: edit the files above until they have no markers, then `agbox apply demo --continue` keeps them as they are.\n")
	}
	in.write(t, "project", map[string]string{"b": marked})
	in.Agbox(t, "apply", "demo", "--abort").Want(t, 0).WantOutput(t, "M b\n", "")
	wantFile(t, filepath.Join(dir, "b"), "ours\n")
	if r := in.Agbox(t, "rm", "demo").Want(t, 4); !strings.Contains(r.Stderr, "1 changed file (b)") {
		t.Errorf("rm of a sandbox with an abandoned conflict: %s", r.Stderr)
	}
	in.Agbox(t, "apply", "demo").Want(t, 1)
	in.write(t, "project", map[string]string{"b": "ours\ntheirs\n"})
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "", "agbox: The conflict in b is resolved.\n")
	in.Agbox(t, "diff", "demo").Want(t, 0).WantOutput(t, "", "")
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "", "agbox: There is nothing new in sandbox demo.\n")
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "-> M b\n", "agbox: 1 change to the sandbox, 0 changes to the folder, 0 conflicts.\n")
	in.inside(t, "demo", "echo more >> /workspace/n/c")
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "n/c\n", "")
	in.Agbox(t, "pull", "demo").Want(t, 0).WantOutput(t, "M n/c\n", "")
	wantFile(t, filepath.Join(dir, "n/c"), "c\nmore\n")
}

func TestContinueResolvesOnlyWhatWasShown(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "base\n", "b": "base\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "echo theirs > /workspace/a")
	in.write(t, "project", map[string]string{"a": "ours\n"})
	in.Agbox(t, "apply", "demo").Want(t, 1)
	in.write(t, "project", map[string]string{"a": "ours\ntheirs\n"})
	if err := os.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	for _, work := range []string{"first", "second"} {
		in.inside(t, "demo", "echo "+work+" > /workspace/b")
		r := in.Agbox(t, "apply", "demo", "--continue").Want(t, 1)
		if !strings.Contains(r.Stdout, "U b  (conflict: ") || !strings.Contains(r.Stdout, "has shown this version") || strings.Contains(r.Stderr, "conflict in b is resolved") {
			t.Errorf("of the %s version --continue says %q%q", work, r.Stdout, r.Stderr)
		}
		in.Agbox(t, "diff", "demo", "--name-only").Want(t, 0).WantOutput(t, "b\n", "")
		in.Agbox(t, "sync", "demo").Want(t, 1)
		harness.WantSame(t, "the work", in.Must(t, "exec", "demo", "--", "cat", "/workspace/b"), work)
	}
	in.Agbox(t, "apply", "demo", "--continue").Want(t, 0).WantOutput(t, "", "agbox: The conflict in b is resolved.\n")
	in.Agbox(t, "diff", "demo").Want(t, 0).WantOutput(t, "", "")
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "-> D b\n", "agbox: 1 change to the sandbox, 0 changes to the folder, 0 conflicts.\n")
}

func TestApplyToABranchTouchesNoFiles(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	root := in.repository(t, map[string]string{"pkg/a": "1\n2\n3\n", "pkg/dirty": "as committed\n", "other": "o\n"})
	in.write(t, "project", map[string]string{"pkg/dirty": "not committed\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", root+"/pkg")
	in.inside(t, "demo", `cd /workspace; sed -i s/3/three/ a; echo n > new; chmod +x new`)
	before := gitIn(t, root, "status", "--porcelain")
	for range 2 { // the second time there is nothing new
		in.Agbox(t, "apply", "demo", "--branch", "work", "-m", "Count to three").Want(t, 0)
	}
	in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
	in.Agbox(t, "diff", "demo", "--name-only", "--from-start").WantOutput(t, "a\nnew\n", "")
	harness.WantSame(t, "the status", gitIn(t, root, "status", "--porcelain"), before)
	harness.WantSame(t, "the commit", gitIn(t, root, "log", "-1", "--format=%an <%ae> %s", "--name-status", "work"), "Ann <ann@example.org> Count to three\n\nM\tpkg/a\nA\tpkg/new\n")
	harness.WantSame(t, "its parent", gitIn(t, root, "rev-parse", "work^"), gitIn(t, root, "rev-parse", "main"))
	in.inside(t, "demo", `cd /workspace; sed -i s/2/two/ a; echo more >> dirty`)
	r := in.Agbox(t, "apply", "demo", "--branch", "work").Want(t, 1)
	harness.WantSame(t, "a conflict", r.Stdout, "M a\nU dirty  (conflict: both have changed the same lines)\n")
	in.Agbox(t, "apply", "demo", "a", "--branch", "work").Want(t, 0)
	harness.WantSame(t, "the second commit", gitIn(t, root, "log", "--format=%s", "work"), "Work of sandbox demo\nCount to three\nfirst\n")
	in.Agbox(t, "apply", "demo", "--branch", "").Want(t, 2) // such as of an empty variable: it would go to the folder
	r = in.Agbox(t, "apply", "demo", "--branch", "main")
	if r.Code == 0 || !strings.Contains(r.Stderr, "the branch main is checked out") {
		t.Errorf("the branch of the work tree: %d %s", r.Code, r.Stderr)
	}
}

func TestWhatWentToABranchIsNotInTheFolder(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	root := in.repository(t, map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", root)
	in.inside(t, "demo", `cd /workspace; echo 2 > a; rm b; echo n > new`)
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "<- M a\n<- D b\n<- A new\n", "agbox: 0 changes to the sandbox, 3 changes to the folder, 0 conflicts.\n")
	harness.WantSame(t, "the sandbox", in.inside(t, "demo", "cd /workspace; cat a new; ls b 2>/dev/null || true"), "2\nn\n")
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "", "")
	in.Agbox(t, "diff", "demo", "--name-only", "--from-start").WantOutput(t, "a\nb\nnew\n", "")
	// What the branch has and the sandbox takes back is named, unless the folder is as the sandbox.
	in.inside(t, "demo", `cd /workspace; echo 3 > a; echo n > other`)
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	in.inside(t, "demo", `cd /workspace; echo 4 > a; rm other`)
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "a\n", "")
	in.inside(t, "demo", `cd /workspace; echo 2 > a`)
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "", "")
}

func TestFromWhereAWorkspaceWasCopiedIsToldWithoutAComparison(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "echo 2 > /workspace/a")
	id := strings.TrimSpace(in.Must(t, "ls", "-q"))
	files := agboxv1.NewFileServiceClient(in.connect(t))
	for _, alone := range []bool{true, false} {
		stream, err := files.CompareWorkspace(harness.Bounded(t), &agboxv1.CompareWorkspaceRequest{SandboxId: id, NamesOnly: true, BaseOnly: alone})
		if err != nil {
			t.Fatal(err)
		}
		first, err := stream.Recv()
		if err != nil || first.GetBase().GetSource() != dir {
			t.Errorf("the first message is %v, %v", first, err)
		}
		if next, err := stream.Recv(); alone && !errors.Is(err, io.EOF) || !alone && string(next.GetDifference().GetPath()) != "a" {
			t.Errorf("the base alone: %t: the next message is %v, %v", alone, next, err)
		}
	}
}

func TestABranchOnTopOfWorkThatIsNotCommitted(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	root := in.repository(t, map[string]string{"a": "1\n", "b": "1\n", "c": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", root)
	in.inside(t, "demo", `cd /workspace; echo 2 > a; rm b`)
	in.Must(t, "apply", "demo")
	in.inside(t, "demo", `cd /workspace; echo 3 > a; echo 3 > b; echo 3 > c`)
	r := in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 1)
	harness.WantSame(t, "why", r.Stderr, "agbox: No commit was made: 2 conflicts. The folder has changes that are not committed (a, b): commit them there, then `agbox apply demo --branch NAME` makes a new branch on top of them.\n")
	gitIn(t, root, "commit", "-qam", "What the sandbox did")
	in.Must(t, "apply", "demo", "--branch", "fix")
	harness.WantSame(t, "the branch", gitIn(t, root, "show", "fix:a")+gitIn(t, root, "show", "fix:b")+gitIn(t, root, "show", "fix:c"), "3\n3\n3\n")
	// Where the folder has other work committed, that is no way out.
	in.inside(t, "demo", `cd /workspace; echo 4 > a`)
	in.write(t, "project", map[string]string{"a": "mine\n"})
	gitIn(t, root, "commit", "-qam", "Work of the user")
	r = in.Agbox(t, "apply", "demo", "--branch", "other").Want(t, 1)
	if strings.Contains(r.Stderr, "not committed") || !strings.Contains(r.Stderr, "Another branch helps only if") {
		t.Errorf("it says %q", r.Stderr)
	}
}

func TestFilesOutsideOfGitAreNamedAndNotOnTheBranch(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	root := in.repository(t, map[string]string{".gitignore": "/dist/\n*.log\n", "a": "1\n", "dist/x.js": "1\n", "dist/y.js": "1\n", "b.log": "1\n"}, "core.autocrlf=input")
	in.write(t, "project", map[string]string{"a": "1\r\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", root)
	in.inside(t, "demo", `cd /workspace; printf '1\r\n2\r\n' > a; echo 2 > dist/x.js; rm dist/y.js; echo 2 > b.log`)
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0).WantOutput(t, "M a\n",
		"agbox: Not on the branch, because git does not track them: b.log, dist/ (2 files). `agbox apply demo` without --branch brings them.\nagbox: Branch fix has the work as commit "+gitIn(t, root, "rev-parse", "--short=12", "fix")[:12]+".\n")
	harness.WantSame(t, "the branch", gitIn(t, root, "show", "fix:a"), "1\n2\n")
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "b.log\ndist/x.js\ndist/y.js\n", "")
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "M a\nM b.log\nM dist/x.js\nD dist/y.js\n", "")
}

// What no tree of git can have is named, and stays work.
func TestFilesWhoseNamesGitRefusesAreNamed(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	root := in.repository(t, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", root)
	in.inside(t, "demo", `cd /workspace; echo 2 > a; ln -s a .gitmodules`)
	in.Agbox(t, "apply", "demo", "--branch", "fix", "--yes-executable").Want(t, 0).WantOutput(t, "M a\n",
		"agbox: With --yes-executable come: A .gitmodules (git).\nagbox: Not on the branch, because git refuses such names: .gitmodules. `agbox apply demo` without --branch brings them.\nagbox: Branch fix has the work as commit "+gitIn(t, root, "rev-parse", "--short=12", "fix")[:12]+".\n")
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, ".gitmodules\n", "")
	in.Agbox(t, "diff", "demo").Want(t, 0).WantOutput(t, "",
		"agbox: .gitmodules: not in the patch: git refuses such a name. `agbox apply demo` brings the file.\n")
	in.Agbox(t, "rm", "demo").Want(t, 4)
	in.Agbox(t, "apply", "demo", "--yes-executable").Want(t, 0)
	in.Must(t, "rm", "demo")
}

// Git commits nothing of a file that it is told not to look at.
func TestAFileThatGitDoesNotLookAtIsNotToBeCommitted(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	root := in.repository(t, map[string]string{"a": "1\n"})
	gitIn(t, root, "update-index", "--skip-worktree", "a")
	if err := os.WriteFile(filepath.Join(root, "a"), []byte("local\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageUser, "--workspace", root)
	in.inside(t, "demo", `echo 2 > /workspace/a`)
	r := in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 1)
	if strings.Contains(r.Stderr, "commit them") || !strings.Contains(r.Stderr, " Git does not look at a in the folder (skip-worktree, assume-unchanged or a sparse checkout), and commits nothing of it. `agbox apply demo` without --branch brings the work to the folder.") {
		t.Errorf("it says %q", r.Stderr)
	}
}

// Work that went to a branch may have left markers in the folder, which only its sandbox takes away.
func TestRemovingASandboxAsksAboutTheMarkersOfItsConflicts(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	root := in.repository(t, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", root)
	in.inside(t, "demo", `cd /workspace; echo 2 > a`)
	if err := os.WriteFile(filepath.Join(root, "a"), []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in.Agbox(t, "apply", "demo").Want(t, 1)
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	r := in.Agbox(t, "rm", "demo").Want(t, 4)
	harness.WantSame(t, "why", r.Stderr, "agbox: Removing sandbox demo would lose the way back from the markers of 1 conflict in the folder (a). `agbox apply demo --abort` puts the files back as they were. `agbox rm -f demo` removes it anyway.\n")
	in.Must(t, "apply", "demo", "--abort")
	in.Must(t, "rm", "demo")
}
