package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// committed makes a repository with a commit of files.
func committed(t *testing.T, in *harness.Install, files map[string]string) string {
	t.Helper()
	root := write(t, in, "project", files)
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"add", "."}, {"commit", "-q", "-m", "first"}} {
		git(t, root, args...)
	}
	return root
}

// What went to a branch counts as brought as long as a reference of the repository has the commit.
func TestWorkOfABranchThatIsGoneIsPendingAgain(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the branch is deleted or reset, or its repository moves")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	pending := func(when, want string) {
		t.Helper()
		harness.WantSame(t, when, in.Agbox(t, "diff", "demo", "--name-only").Want(t, 0).Stdout, want)
	}
	asked := func(when string) {
		t.Helper()
		if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "precious") {
			t.Errorf("%s: rm ended with %d: %s", when, r.Code, r.Stderr)
		}
	}
	inside(t, in, "demo", "echo work > /workspace/precious")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	pending("on the branch", "")
	git(t, root, "branch", "-q", "-m", "w", "renamed")
	pending("on the renamed branch", "")
	git(t, root, "branch", "-q", "-D", "renamed")
	pending("the branch is deleted", "precious\n")
	asked("the branch is deleted")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	harness.WantSame(t, "the branch again", git(t, root, "show", "w:precious"), "work")
	pending("on the branch again", "")
	inside(t, in, "demo", "echo 2 > /workspace/b")
	in.Agbox(t, "apply", "demo", "b", "--branch", "other").Want(t, 0)
	git(t, root, "branch", "-q", "-f", "w", "main")
	pending("the branch is reset, another one has a file", "precious\n")
	write(t, in, "project", map[string]string{"precious": "work\n"})
	pending("the folder has the file", "")
	if err := os.Rename(filepath.Join(root, ".git"), filepath.Join(root, "..", "moved")); err != nil {
		t.Fatal(err)
	}
	pending("the repository is gone", "b\n")
	if err := os.Rename(filepath.Join(root, "..", "moved"), filepath.Join(root, ".git")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(root, "precious")); err != nil {
		t.Fatal(err)
	}
	git(t, root, "reflog", "expire", "--expire=now", "--all")
	git(t, root, "gc", "-q", "--prune=now")
	asked("git has removed the commit")
	in.Agbox(t, "apply", "demo").Want(t, 0)
	git(t, root, "branch", "-q", "-D", "other")
	in.Must(t, "rm", "demo") // the folder has all
}

// A file that was copied in and not tracked is work for a branch once the sandbox tracks it.
func TestWhatASandboxAddsToGitIsOnItsBranch(t *testing.T) {
	t.Parallel()
	Row(t, 133, "files that were copied untracked are added to git")
	in := harness.New(t)
	root := committed(t, in, map[string]string{".gitignore": "*.log\n", "a": "1\n"})
	write(t, in, "project", map[string]string{"notes": "n\n", "staged": "s\n", "other": "o\n", "x.log": "l\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; for f in notes staged other x.log; do echo more >> $f; done; git add notes; git commit -qm second; git add staged; git add -f x.log")
	for _, stopped := range []bool{false, true} {
		branch := map[bool]string{false: "w", true: "of-stopped"}[stopped]
		if stopped {
			in.Must(t, "stop", "demo")
			git(t, root, "branch", "-q", "-D", "w")
		}
		r := in.Agbox(t, "apply", "demo", "--branch", branch, "--squash").Want(t, 0)
		r.WantOutput(t, "A notes\nA staged\n", "agbox: Not on the branch, because git does not track them: other, x.log. `agbox apply demo` without --branch brings them.\n"+
			"agbox: Branch "+branch+" has the work as commit "+git(t, root, "rev-parse", "--short=12", branch)+".\n")
		harness.WantSame(t, "the branch", git(t, root, "show", branch+":notes", branch+":staged"), "n\nmore\ns\nmore")
	}
	in.Agbox(t, "apply", "demo", "other", "--branch", "none", "--squash").Want(t, 1).WantOutput(t, "",
		"agbox: Not on the branch, because git does not track them: other. `agbox apply demo` without --branch brings them.\nagbox: No branch was made: nothing of the work can be on it.\n")
}

// What git has stopped tracking may not come to a branch: the message says how the index can be read.
func TestAnIndexThatCannotBeReadIsWrittenAnew(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"in/a": "1\n", "out/b": "1\n", "secret": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 > secret; git rm -q --cached secret")
	for _, kind := range []struct{ name, script, secret string }{
		{"split", "git config core.splitIndex true; echo > new; git add new", "1"},
		{"sparse", "git config core.splitIndex false; git sparse-checkout set --cone --sparse-index in", "1"},
		// An older version that is larger than is read: 256,000 paths of 200 bytes.
		{"large", "git update-index --index-version 2; long=$(printf %0190d 0); seq -w 256000 | sed \"s,.*,100644 $(git hash-object -w in/a)\t$long/&,\" | git update-index --index-info", "1"},
		{"damaged", "git sparse-checkout disable; truncate -s 100 .git/index", "2"}, // git tracks again what it has committed
	} {
		inside(t, in, "demo", "cd /workspace; echo "+kind.name+" > in/a; "+kind.script)
		r := in.Agbox(t, "apply", "demo", "--branch", "fix")
		if r.Code == 0 {
			t.Fatalf("%s: the branch was made: %s", kind.name, r.Stdout)
		}
		_, rest, _ := strings.Cut(r.Stderr, "In /workspace of the sandbox, `")
		remedy, _, says := strings.Cut(rest, "` writes one that can be read.")
		if !says {
			t.Fatalf("%s: apply said %s", kind.name, r.Stderr)
		}
		inside(t, in, "demo", "cd /workspace; "+remedy+"; git status -s | wc -l") // which writes the index again
		in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
		harness.WantSame(t, kind.name, git(t, root, "show", "fix:in/a", "fix:secret"), kind.name+"\n"+kind.secret)
	}
}

func TestABranchNeedsAFirstCommit(t *testing.T) {
	t.Parallel()
	Row(t, 133, "a repository without a commit")
	in := harness.New(t)
	root := write(t, in, "project", map[string]string{"f": "1\n"})
	git(t, root, "init", "-q", "-b", "main")
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 >> f; git add -A; git commit -qm first")
	if r := in.Agbox(t, "apply", "demo", "--branch", "b"); r.Code == 0 || !strings.Contains(r.Stderr, `its repository has no commit, so that no branch can have "f" as a change: make a first commit in the folder`) {
		t.Errorf("apply ended with %d: %s", r.Code, r.Stderr)
	}
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "f\n", "")
}

func TestCommitsOfABranchThatIsGoneArePendingAgain(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the branch with the commits is deleted")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 > a; echo 3 > new; git add -A; git commit -qm second")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
	was := git(t, root, "rev-parse", "w")
	git(t, root, "branch", "-q", "-D", "w")
	if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "2 changed files (a, new) and its commits up to") {
		t.Errorf("rm ended with %d: %s", r.Code, r.Stderr)
	}
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	harness.WantSame(t, "the branch again", git(t, root, "rev-parse", "w"), was)
	in.Must(t, "rm", "demo")
}

// A call that was killed after the branch had moved has noted which work it brought, and not that all
// commits came. The next one notes that, although it brings nothing.
func TestCommitsThatAKilledCallHasBroughtCountAsBrought(t *testing.T) {
	t.Parallel()
	Row(t, 132, "a call is killed once the branch has moved")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", ".gitattributes": "*.u working-tree-encoding=UTF-16\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 > a; git commit -qam second; echo bad > b.u")
	program, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := write(t, in, "bin", map[string]string{"git": "#!/bin/sh\n'" + program + "' \"$@\" || exit\ncase \" $* \" in *' update-ref '*) kill -9 $PPID ;; esac\n"})
	if err := os.Chmod(filepath.Join(bin, "git"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := in.Command(harness.Bounded(t), "agbox", "apply", "demo", "--branch", "w")
	cmd.Env = append(cmd.Env, "PATH="+bin+":/usr/local/bin:/usr/bin:/bin")
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("apply was not killed: %v: %s", err, out)
	}
	harness.WantSame(t, "the branch", git(t, root, "log", "--format=%s", "w"), "second\nfirst")
	r := in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	if !strings.Contains(r.Stderr, "(working-tree-encoding): b.u. ") {
		t.Errorf("the next call says %q", r.Stderr)
	}
	harness.WantSame(t, "up to which commit all came", brought(t, in, "demo"), git(t, root, "rev-parse", "w"))
}

// brought returns up to which commit of a sandbox all came home.
func brought(t *testing.T, in *harness.Install, sandbox string) string {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+in.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := agboxv1.NewFileServiceClient(conn).CompareWorkspace(harness.Bounded(t), &agboxv1.CompareWorkspaceRequest{
		SandboxId: in.SandboxID(t, sandbox), BaseOnly: true, NamesOnly: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return first.GetBase().GetBrought()
}

// A branch that was merged and deleted has left its work in HEAD: nothing was refused to a branch.
func TestWorkThatHeadHasNeedsNoBranch(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the branch is merged and deleted")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	write(t, in, "project", map[string]string{"notes": "n\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "echo 2 > /workspace/a; echo more >> /workspace/notes")
	in.Agbox(t, "apply", "demo", "a", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "--squash", "w")
	git(t, root, "commit", "-q", "-m", "merged")
	git(t, root, "branch", "-q", "-D", "w")
	write(t, in, "project", map[string]string{"a": "1\n"}) // so that the work is pending
	in.Agbox(t, "apply", "demo", "--branch", "w2").Want(t, 0).WantOutput(t, "",
		"agbox: Not on the branch, because git does not track them: notes. `agbox apply demo` without --branch brings them.\nagbox: No branch was made: it would have nothing new.\n")
}

// A file that moves across what a branch cannot have leaves the other half as work.
func TestARenameAcrossASubmoduleOrIgnoredFilesIsTwoChanges(t *testing.T) {
	t.Parallel()
	Row(t, 133, "renames across a submodule and ignored files")
	in := harness.New(t)
	root := committed(t, in, map[string]string{".gitignore": "*.log\n", "into": "1\n"})
	part := write(t, in, "project/sm", map[string]string{"out": "2\n"})
	git(t, part, "init", "-q", "-b", "main")
	git(t, part, "-c", "user.name=Ann", "-c", "user.email=ann@example.org", "commit", "-q", "--allow-empty", "-m", "first")
	git(t, root, "add", "sm")
	git(t, root, "commit", "-q", "-m", "second")
	write(t, in, "project", map[string]string{"x.log": "3\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; mv sm/out out; mv into sm/into; mv x.log kept")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	harness.WantSame(t, "the branch", git(t, root, "ls-tree", "-r", "--name-only", "w"), ".gitignore\nkept\nout\nsm")
	harness.WantSame(t, "what is left", in.Must(t, "diff", "demo", "--name-only"), "sm/into\nsm/out\nx.log")
}

// What was not committed when it was copied in is in the commit that stores it in another way. Only the
// folder and the sandbox have it as it was.
func TestWhatIsCommittedWithOtherEndsOfLinesIsOnTheBranch(t *testing.T) {
	t.Parallel()
	Row(t, 133, "ends of lines and encodings")
	in := harness.New(t)
	const mine = "1\r\n2\nmine\r\n"
	root := committed(t, in, map[string]string{"a": "1\r\n2\n"})
	write(t, in, "project", map[string]string{"a": mine})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", `cd /workspace; printf '* text\n*.none working-tree-encoding=none\n' > .gitattributes; git add .; git add --renormalize .; git commit -qm second; echo x > x.none`)
	in.Must(t, "stop", "demo")
	write(t, in, "project", map[string]string{"a": "other\n"})
	if r := in.Agbox(t, "apply", "demo", "--branch", "w"); r.Code == 0 || !strings.Contains(r.Stderr, `they have "a" otherwise than the workspace, which cannot be read: it is too large, or the sandbox is not running; if so, start it`) {
		t.Errorf("stopped: %d %s", r.Code, r.Stderr)
	}
	write(t, in, "project", map[string]string{"a": mine})
	harness.WantSame(t, "of the folder", in.Must(t, "apply", "demo", "--branch", "w", "--check"), "")
	write(t, in, "project", map[string]string{"a": "other\n"})
	in.Must(t, "start", "demo")
	r := in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	if !strings.Contains(r.Stderr, "working-tree-encoding): x.none. `agbox apply demo` without --branch brings them.\nagbox: Git does not know the encoding none.\n") {
		t.Errorf("it says %q", r.Stderr)
	}
	harness.WantSame(t, "the branch", git(t, root, "show", "w:a"), "1\n2\nmine")
	harness.WantSame(t, "what is left", in.Must(t, "diff", "demo", "--name-only"), "x.none")
}

// What the folder has already does not come to a branch again: it is named, and the message says how
// the branch gets it.
func TestWhatTheFolderHasAlreadyAndTheBranchHasNotIsNamed(t *testing.T) {
	t.Parallel()
	Row(t, 133, "work that the folder has already")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n", "c": "1\n"})
	const line = "agbox: Not on the branch, because the folder has it already: b. Commit it there, then merge that commit into the branch.\n"
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "echo 2 > /workspace/b")
	in.Must(t, "apply", "demo")
	const none = "agbox: Not on a branch, because the folder has it already: b.\n"
	in.Agbox(t, "apply", "demo", "--branch", "fix", "--check").Want(t, 0).WantOutput(t, "", none)
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0).WantOutput(t, "", none+"agbox: No branch was made: it would have nothing new.\n")
	harness.WantSame(t, "the branches", git(t, root, "branch", "--format=%(refname:short)"), "main")
	git(t, root, "branch", "old")
	in.Agbox(t, "apply", "demo", "--branch", "old").Want(t, 0).WantOutput(t, "", line)
	inside(t, in, "demo", "echo 1 > /workspace/d")
	if r := in.Agbox(t, "apply", "demo", "--branch", "other", "--check").Want(t, 0); !strings.HasSuffix(r.Stderr, line) {
		t.Errorf("with --check, it says %q", r.Stderr)
	}
	r := in.Agbox(t, "apply", "demo", "--branch", "other").Want(t, 0)
	if !strings.Contains(r.Stderr, line) {
		t.Errorf("beside other work, it says %q", r.Stderr)
	}
	inside(t, in, "demo", "cd /workspace; echo 2 > a; git commit -qm second a; echo 2 > c")
	r = in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	if !strings.Contains(r.Stderr, line) {
		t.Errorf("it says %q", r.Stderr)
	}
	git(t, root, "commit", "-q", "-a", "-m", "what came first")
	git(t, root, "worktree", "add", "-q", "../desk", "fix")
	git(t, filepath.Join(root, "../desk"), "merge", "-q", "--no-edit", "main")
	git(t, root, "worktree", "remove", "../desk")
	harness.WantSame(t, "the branch", git(t, root, "show", "fix:a", "fix:b", "fix:c"), "2\n2\n2")
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0).WantOutput(t, "", "agbox: There is nothing new in sandbox demo.\n")
}

// The version that the branch had before went to the folder last.
func TestAVersionThatABranchHadBeforeComesAgain(t *testing.T) {
	t.Parallel()
	Row(t, 133, "an older version is committed")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "0\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	for _, text := range []string{"X", "Y"} {
		inside(t, in, "demo", "echo "+text+" > /workspace/a")
		in.Agbox(t, "apply", "demo", "--branch", "fix", "--squash").Want(t, 0)
	}
	inside(t, in, "demo", "cd /workspace; echo X > a; git commit -qam second")
	in.Agbox(t, "apply", "demo").Want(t, 0)
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	harness.WantSame(t, "the branch", git(t, root, "show", "fix:a"), "X")
}

// An amended commit is another one, but the folder has all that the sandbox has.
func TestCommitsAreBroughtIfTheFolderHasTheirWork(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the brought commit is amended")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 > a; echo 3 > new; git add -A; git commit -qm second")
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	git(t, root, "checkout", "-q", "fix")
	git(t, root, "commit", "-q", "--amend", "-m", "better")
	in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
	git(t, root, "checkout", "-q", "main")
	if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "2 changed files (a, new) and its commits up to") {
		t.Errorf("the folder has not the work: rm ended with %d: %s", r.Code, r.Stderr)
	}
	git(t, root, "checkout", "-q", "fix")
	in.Must(t, "rm", "demo")
}

// What a sandbox has stopped tracking is not on its branch, although it has the file, and neither is
// what the folder had removed before the copy. What the copy left out stays, whatever it commits.
func TestWhatASandboxStopsTrackingIsNotOnItsBranch(t *testing.T) {
	t.Parallel()
	Row(t, 133, "a secret is no longer tracked, then filled")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", ".env": "S=1\n", "src/x": "x\n", "out": "o\n"})
	if err := os.Rename(filepath.Join(root, "src"), filepath.Join(root, "lib")); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root, "--exclude", "out")...)
	inside(t, in, "demo", "cd /workspace; git rm -q --cached .env; echo .env > .gitignore; git add -A; git commit -qm second")
	in.Agbox(t, "apply", "demo", "--branch", "same").Want(t, 0)
	inside(t, in, "demo", "echo S=REALKEY > /workspace/.env; echo 2 > /workspace/a")
	for _, flags := range [][]string{{"--branch", "same"}, {"--branch", "new"}, {"--branch", "one", "--squash"}} {
		r := in.Agbox(t, append([]string{"apply", "demo"}, flags...)...).Want(t, 0)
		want := ".gitignore\na\nlib/x\nout"
		if len(flags) > 2 { // what nobody has edited since is no work
			want = ".gitignore\na\nout\nsrc/x"
		}
		harness.WantSame(t, strings.Join(flags, " "), git(t, root, "ls-tree", "-r", "--name-only", flags[1]), want)
		if !strings.Contains(r.Stderr, "git does not track them: .env.") {
			t.Errorf("%v names not what is on no branch: %s", flags, r.Stderr)
		}
	}
	if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "(.env)") {
		t.Errorf("rm ended with %d: %s", r.Code, r.Stderr)
	}
}

// A branch that has lost a file gets it again once the sandbox tracks it again, changed or not, and it
// is work until then.
func TestWhatASandboxTracksAgainIsOnItsBranchAgain(t *testing.T) {
	t.Parallel()
	Row(t, 133, "a file is tracked again")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "same": "s\n", "changed": "c\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo n > new; git add new; git commit -qm new")
	in.Agbox(t, "apply", "demo", "--branch", "w", "--squash").Want(t, 0)
	want := "c\n"
	for _, flags := range [][]string{{"w"}, {"of-stopped", "--squash"}} {
		branch := flags[0]
		inside(t, in, "demo", "cd /workspace; git rm -q --cached --ignore-unmatch same changed new; printf 'same\\nchanged\\n' > .git/info/exclude; git commit -qm less")
		in.Agbox(t, append([]string{"apply", "demo", "--branch"}, flags...)...).Want(t, 0)
		harness.WantSame(t, "without them", git(t, root, "ls-tree", "-r", "--name-only", branch), "a")
		inside(t, in, "demo", "echo more >> /workspace/new")
		if r := in.Agbox(t, "apply", "demo", "--branch", branch).Want(t, 0); !strings.Contains(r.Stderr, "git does not track them: new.") {
			t.Errorf("apply says not what is on no branch: %s", r.Stderr)
		}
		inside(t, in, "demo", "cd /workspace; echo more >> changed; git add -f same changed; git commit -qm more")
		if want += "more\n"; branch == "of-stopped" {
			in.Must(t, "stop", "demo")
		}
		harness.WantSame(t, "the work", in.Must(t, "diff", "demo", "--name-only"), "changed\nnew\nsame")
		in.Agbox(t, "apply", "demo", "--branch", branch, "--squash").Want(t, 0)
		harness.WantSame(t, "with them", git(t, root, "show", branch+":changed", branch+":same"), want+"s")
	}
}

// What went to a branch and the sandbox takes back since is taken back there, too: its commits, and what
// it has not committed.
func TestWhatASandboxTakesBackIsTakenBackOnItsBranch(t *testing.T) {
	t.Parallel()
	Row(t, 133, "work is taken back")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "gone": "g\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	for _, one := range []struct{ branch, end, back string }{
		{"loose", "true", "git checkout -q .; rm new"},
		{"commits", "git add -A; git commit -qm one", "git revert --no-edit HEAD"},
		{"both", "git add -A; git commit -qm one", "echo 1 > a; echo g > gone; rm new; git add gone"},
	} {
		inside(t, in, "demo", "cd /workspace; echo 2 >> a; echo n > new; rm gone; "+one.end)
		in.Agbox(t, "apply", "demo", "--branch", one.branch).Want(t, 0)
		harness.WantSame(t, one.branch, git(t, root, "grep", "-h", "", one.branch), "1\n2\nn")
		inside(t, in, "demo", "cd /workspace; "+one.back)
		in.Agbox(t, "apply", "demo", "--branch", one.branch).Want(t, 0)
		harness.WantSame(t, one.branch+" when it is taken back", git(t, root, "grep", "-h", "", one.branch), "1\ng")
		if r := in.Agbox(t, "apply", "demo", "--branch", one.branch).Want(t, 0); !strings.Contains(r.Stderr, "nothing new") {
			t.Errorf("%s: a further call says %s", one.branch, r.Stderr)
		}
		harness.WantSame(t, "what the folder lacks", in.Must(t, "diff", "demo", "--name-only"), "")
	}
}

// A new file in the place of one that a sandbox has removed with a commit comes to a branch once git
// tracks it there, and is named until then.
func TestAFileInThePlaceOfARemovedOneIsOnABranchOnceItIsTracked(t *testing.T) {
	t.Parallel()
	Row(t, 133, "a removed file is there anew")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "f": "f\n", "g": "g\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; git rm -q f g; git commit -qm less")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	inside(t, in, "demo", "cd /workspace; echo 2 | tee f g new")
	for _, step := range []struct{ do, squash, outside, want string }{
		{"true", "--squash", "f, g", "a\nnew"},
		{"true", "--squash=false", "f, g", "a\nnew"},
		{"git add g", "--squash", "f", "a\ng\nnew"},
		{"git commit -qm g", "--squash=false", "f", "a\ng\nnew"},
		{"git add f", "--squash=false", "", "a\nf\ng\nnew"},
	} {
		inside(t, in, "demo", "cd /workspace; "+step.do)
		r := in.Agbox(t, "apply", "demo", "--branch", "w", step.squash).Want(t, 0)
		if named := strings.Contains(r.Stderr, "git does not track them: "+step.outside+"."); named != (step.outside != "") {
			t.Errorf("%s, %s: apply says %s", step.do, step.squash, r.Stderr)
		}
		harness.WantSame(t, step.do+", "+step.squash, git(t, root, "ls-tree", "-r", "--name-only", "w"), step.want)
	}
}

// That the folder has a branch for a while, or merges it and takes that back, notes nothing: the work is
// asked about once it is nowhere, and sync brings it.
func TestAFolderThatHadABranchForAWhileNotesNothing(t *testing.T) {
	t.Parallel()
	Row(t, 133, "the branch is checked out for a while")
	in := harness.New(t)
	for i, look := range [][]string{{"apply", "--check"}, {"apply", "other"}} {
		root, name := committed(t, in, map[string]string{"a": "1\n", "other": "o\n", "same": "s\n"}), fmt.Sprint("demo", i)
		in.Create(t, name, harness.ImageDebian, append(withGit(t), "--workspace", root)...)
		inside(t, in, name, "cd /workspace; git rm -q --cached same; git commit -qm less; echo 2 >> a; echo n > new")
		in.Agbox(t, "apply", name, "--branch", "w", "--squash").Want(t, 0)
		git(t, root, "checkout", "-q", "w")
		in.Agbox(t, look[0], name, look[1]).Want(t, 0)
		git(t, root, "checkout", "-q", "main")
		inside(t, in, name, "cd /workspace; git add same; git commit -qm again")
		in.Agbox(t, "apply", name, "--branch", "w", "--squash").Want(t, 0)
		harness.WantSame(t, "what it tracks again", git(t, root, "show", "w:same"), "s")
		git(t, root, "branch", "-q", "-D", "w")
		if r := in.Agbox(t, "rm", name); r.Code != 4 || !strings.Contains(r.Stderr, "(a, new") {
			t.Errorf("rm ended with %d: %s", r.Code, r.Stderr)
		}
		in.Agbox(t, "sync", name).Want(t, 0)
		harness.WantSame(t, "the folder", git(t, root, "grep", "--untracked", "-h", ""), "1\n2\nn\no\ns")
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
	}
}

// What a branch has is no base of another one, which has all that the sandbox has changed, and nothing that
// it has taken back.
func TestEachBranchHasWhatTheSandboxHasChanged(t *testing.T) {
	t.Parallel()
	Row(t, 133, "there are several branches")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "b\n", "gone": "g\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a; rm gone; echo n > new")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	inside(t, in, "demo", "cd /workspace; echo g > gone; echo n >> new; echo b >> b")
	git(t, root, "rm", "-q", "gone")
	git(t, root, "commit", "-qm", "the user's")
	in.Agbox(t, "apply", "demo", "--branch", "w2").Want(t, 0)
	harness.WantSame(t, "a second branch", git(t, root, "grep", "", "w2"), "w2:a:1\nw2:a:2\nw2:b:b\nw2:b:b\nw2:new:n\nw2:new:n")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	harness.WantSame(t, "the first one", git(t, root, "grep", "", "w"), "w:a:1\nw:a:2\nw:b:b\nw:b:b\nw:gone:g\nw:new:n\nw:new:n")
	for _, branch := range []string{"w", "w2"} {
		if r := in.Agbox(t, "apply", "demo", "--branch", branch).Want(t, 0); !strings.Contains(r.Stderr, "nothing new") {
			t.Errorf("%s, again: apply says %s", branch, r.Stderr)
		}
	}
}

// A branch that loses a file because git does not track it any more has not the version of another one, with
// which that goes.
func TestAnotherBranchThatLosesAFileHasNoVersionOfIt(t *testing.T) {
	t.Parallel()
	Row(t, 133, "a second branch loses the file, the first is deleted")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "same": "s\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo work >> same; git commit -qam one")
	in.Agbox(t, "apply", "demo", "--branch", "w", "--squash").Want(t, 0)
	inside(t, in, "demo", "cd /workspace; git rm -q --cached same; git commit -qm less; echo 2 >> a")
	in.Agbox(t, "apply", "demo", "--branch", "w2", "--squash").Want(t, 0)
	git(t, root, "branch", "-q", "-D", "w")
	if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "same") {
		t.Errorf("rm ended with %d: %s", r.Code, r.Stderr)
	}
}
