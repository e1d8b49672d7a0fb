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

const ten = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"

// files returns the names and contents of the files in a repository.
func files(t *testing.T, root string) string {
	t.Helper()
	all := names(t, root)
	text := strings.Join(all, " ") + " "
	for _, name := range slices.DeleteFunc(all, func(name string) bool { return name == ".git" }) {
		one, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		text += string(one)
	}
	return text
}

// What went to a branch that the user merges is in the folder, as long as HEAD has it.
func TestAMergedBranchIsWhatTheFolderHas(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the branch is merged, and the sandbox goes on")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": ten, "gone": "g\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; sed -i s/^2$/two/ a; rm gone; echo n > new")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	inside(t, in, "demo", "cd /workspace; sed -i s/^two$/zwei/ a; echo m >> new")
	write(t, in, "project", map[string]string{"a": strings.NewReplacer("2", "two", "9", "nine").Replace(ten)})
	write(t, in, "project/.git", map[string]string{"index.lock": ""}) // git asks for a message
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "M a  (merged)\nM new\n", "")
	harness.WantSame(t, "the folder", files(t, root), ".git a b new "+strings.NewReplacer("2", "zwei", "9", "nine").Replace(ten)+"1\nn\nm\n")
}

// So it is if HEAD has another commit with the same versions of files.
func TestABranchThatIsMergedAsOneCommitIsWhatTheFolderHas(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the branch is merged as one commit or picked, and then deleted")
	for _, how := range []string{"merge -q --squash w", "cherry-pick -n main..w"} {
		in := harness.New(t)
		root := committed(t, in, map[string]string{"a": ten, "gone": "g\n", "b": "1\n"})
		in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
		inside(t, in, "demo", "cd /workspace; sed -i s/^2$/two/ a; git commit -qam two; git rm -q gone; echo n > new")
		in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
		git(t, root, strings.Fields(how)...)
		git(t, root, "commit", "-q", "-m", "as one")
		git(t, root, "branch", "-q", "-D", "w")
		in.Agbox(t, "diff", "demo").Want(t, 0).WantOutput(t, "", "")
		write(t, in, "project", map[string]string{"a": strings.NewReplacer("2", "two", "9", "nine").Replace(ten)})
		git(t, root, "commit", "-q", "-a", "-m", "the user goes on")
		inside(t, in, "demo", "cd /workspace; sed -i s/^two$/zwei/ a; rm new; echo g > gone; echo 2 >> b")
		in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "a\nb\ngone\nnew\n", "")
		in.Agbox(t, "sync", "demo").Want(t, 1)
		harness.WantSame(t, how, files(t, root), ".git a b gone "+strings.NewReplacer("2", "two", "9", "nine").Replace(ten)+"1\n2\ng\n")
		in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "M a  (merged)\n", "")
	}
}

// What git does not track any more in the sandbox, the folder loses by the merge, and the sandbox keeps.
func TestAFileThatAMergedBranchHasLostStaysInTheSandbox(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "local": "l\n", "more": "m\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; git rm -q --cached local more; echo local > .gitignore; echo 2 >> more; git add .gitignore; git commit -qm less")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	in.Agbox(t, "sync", "demo").Want(t, 0)
	harness.WantSame(t, "the sandbox", inside(t, in, "demo", "cd /workspace; cat local more"), "l\nm\n2\n")
	harness.WantSame(t, "the folder", files(t, root), ".git .gitignore a more local\n1\nm\n2\n")
}

// git checks out what it stores: the file has other ends of lines than what was brought.
func TestEndsOfLinesOfAMergedBranchAreNoConflict(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	git(t, root, "config", "core.autocrlf", "input")
	write(t, in, "project", map[string]string{"dos": strings.ReplaceAll(ten, "\n", "\r\n")})
	git(t, root, "add", "dos")
	git(t, root, "commit", "-q", "-m", "dos")
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; sed -i s/^2/two/ dos")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	harness.WantSame(t, "the folder", files(t, root), ".git a dos 1\n"+strings.Replace(ten, "2", "two", 1))
	inside(t, in, "demo", "cd /workspace; sed -i s/^9/nine/ dos")
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "M dos  (merged)\n", "")
	harness.WantSame(t, "the folder", files(t, root), ".git a dos 1\n"+strings.NewReplacer("2", "two", "9", "nine").Replace(ten))
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "", "agbox: There is nothing new in sandbox demo.\n")
}

// What the sandbox has taken back is not what the user has changed.
func TestSyncTakesBackWhatAMergedBranchHas(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "gone": "g\n", "kept": "k\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a; rm gone; echo n > new; echo 2 >> kept")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	inside(t, in, "demo", "cd /workspace; echo 1 > a; echo g > gone; rm new")
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "a\ngone\nnew\n", "")
	write(t, in, "project", map[string]string{"kept": "k\n2\nuser\n"})
	in.Agbox(t, "sync", "demo").Want(t, 0)
	harness.WantSame(t, "the folder", files(t, root), ".git a gone kept 1\ng\nk\n2\nuser\n")
	harness.WantSame(t, "the sandbox", inside(t, in, "demo", "cd /workspace; cat a gone kept; ls"), "1\ng\nk\n2\nuser\na\ngone\nkept\n")
	in.Agbox(t, "apply", "demo", "kept", "--branch", "w2").Want(t, 0)
	harness.WantSame(t, "what only the user has changed", git(t, root, "branch", "--list", "w2"), "")
}

// What both sides have by the merge is the base: a checkout goes to the sandbox as a whole.
func TestSyncFollowsACheckoutAsAWhole(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n", "gone": "g\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a; echo 2 >> b; rm gone; echo n > new")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "checkout", "-q", "w")
	write(t, in, "project", map[string]string{"b": "1\n2\nuser\n"})
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "-> M b\n", "agbox: 1 change to the sandbox, 0 changes to the folder, 0 conflicts.\n")
	git(t, root, "checkout", "-q", "-f", "main")
	in.Agbox(t, "sync", "demo").Want(t, 0)
	harness.WantSame(t, "the sandbox", inside(t, in, "demo", "cd /workspace; cat a b gone; ls"), "1\n1\ng\na\nb\ngone\n")
	harness.WantSame(t, "the folder", git(t, root, "status", "--porcelain"), "")
}

// The folder has got what the sandbox takes back then, and the branch never had it.
func TestAMergeSaysNothingOfWhatTheBranchHadBefore(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a")
	in.Agbox(t, "apply", "demo").Want(t, 0)
	inside(t, in, "demo", "cd /workspace; echo 1 > a; echo 2 >> b")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "<- M a\n", "agbox: 0 changes to the sandbox, 1 change to the folder, 0 conflicts.\n")
}

// fails runs git in a repository, which stops it with a conflict.
func fails(t *testing.T, root string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(harness.Bounded(t), "git", append([]string{"-C", root, "-c", "user.name=u", "-c", "user.email=u@example.org"}, args...)...).CombinedOutput(); err == nil {
		t.Fatalf("git %v finds no conflict: %s", args, out)
	}
}

// As long as a merge has only begun, it is open whether the folder has the work: the user may abort it.
func TestAMergeThatIsAbortedLeavesTheWorkOfTheSandbox(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the merge has a conflict and is aborted")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": ten, "c": "1\n", "d": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; sed -i s/^2$/two/ a; echo agent > c; echo agent > d; echo agent > new")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	write(t, in, "project", map[string]string{"a": strings.Replace(ten, "9", "nine", 1), "c": "user\n"})
	git(t, root, "commit", "-q", "-a", "-m", "user")
	fails(t, root, "merge", "-q", "w")
	for _, command := range []string{"sync", "apply"} {
		in.Agbox(t, command, "demo").Want(t, 4).WantOutput(t, "", "agbox: In "+root+", git is in the middle of a merge, rebase or pick, which may bring or take away work of this sandbox that is on a branch: first complete or abort it (`git status` says how).\n")
	}
	git(t, root, "merge", "--abort")
	const both = "(conflict: both sides have changed it, and both keep theirs)\n"
	in.Agbox(t, "sync", "demo").Want(t, 1).WantOutput(t, "!! U a  "+both+"!! U c  "+both+"<- M d\n<- A new\n",
		"agbox: 0 changes to the sandbox, 2 changes to the folder, 2 conflicts.\nagbox: `agbox apply demo` merges the files in conflict into the folder.\n")
	harness.WantSame(t, "the sandbox", inside(t, in, "demo", "cd /workspace; cat a c d new"), strings.Replace(ten, "2", "two", 1)+strings.Repeat("agent\n", 3))
}

// A merge of something else changes nothing about what HEAD has.
func TestAnotherMergeLeavesWhatTheFolderHas(t *testing.T) {
	t.Parallel()
	Row(t, 132, "another merge has a conflict meanwhile")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n", "o": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, "--workspace", root)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a; echo 2 >> b; echo new > new")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "branch", "other")
	git(t, root, "merge", "-q", "w")
	for _, branch := range []string{"main", "other"} {
		git(t, root, "checkout", "-q", branch)
		write(t, in, "project", map[string]string{"o": branch + "\n"})
		git(t, root, "commit", "-q", "-a", "-m", branch)
	}
	git(t, root, "checkout", "-q", "main")
	fails(t, root, "merge", "-q", "other")
	inside(t, in, "demo", "cd /workspace; echo 3 >> a; echo 1 > b; rm new")
	in.Agbox(t, "apply", "demo", "--check").Want(t, 0).WantOutput(t, "M a\nM b\nD new\n", "")
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "<- M a\n<- M b\n<- D new\n-> M o\n", "agbox: 1 change to the sandbox, 3 changes to the folder, 0 conflicts.\n")
}

// A version that the user had before the work, and has taken back, is no merge.
func TestWhatTheUserHasTakenBackIsNoMerge(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "false\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	for _, text := range []string{"true\n", "false\n"} {
		write(t, in, "project", map[string]string{"a": text})
		git(t, root, "commit", "-q", "-a", "-m", "user")
	}
	inside(t, in, "demo", "cd /workspace; echo true > a; GIT_COMMITTER_DATE=@$(($(date +%s) + 2)) git commit -qam agent") // a second later
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "branch", "-q", "-D", "w")
	in.Agbox(t, "diff", "demo", "--name-only").WantOutput(t, "a\n", "")
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "M a\n", "")
}

// The user goes on with what was merged as one commit.
func TestTheUserGoesOnWithWhatWasMergedAsOneCommit(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 > a; git commit -qam agent")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "--squash", "w")
	git(t, root, "commit", "-q", "-m", "as one")
	git(t, root, "branch", "-q", "-D", "w")
	write(t, in, "project", map[string]string{"a": "3\n"})
	git(t, root, "commit", "-q", "-a", "-m", "user")
	in.Agbox(t, "diff", "demo").Want(t, 0).WantOutput(t, "", "")
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "-> M a\n", "agbox: 1 change to the sandbox, 0 changes to the folder, 0 conflicts.\n")
}

// A commit that was amended since does not leave anything pending.
func TestWorkThatIsThereStaysBroughtIfHEADIsAmended(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a; git commit -qam two")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	git(t, root, "commit", "-q", "--allow-empty", "-m", "user")
	inside(t, in, "demo", "cd /workspace; echo 2 >> b; git commit -qam three")
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "M b\n", "")
	git(t, root, "commit", "-q", "-a", "--amend", "-m", "user, amended")
	in.Agbox(t, "apply", "demo").Want(t, 0)
	in.Must(t, "rm", "demo")
}

// Nothing is noted by apply about what HEAD has: the user may go back.
func TestAMergeThatIsTakenBackLeavesTheWorkPending(t *testing.T) {
	t.Parallel()
	Row(t, 132, "the merge is taken back, and the branch deleted")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a; git commit -qam two; echo n > new")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	for _, how := range [][]string{{"apply", "demo", "--check"}, {"apply", "demo"}} {
		in.Agbox(t, how...).Want(t, 0)
	}
	git(t, root, "reset", "-q", "--hard", "HEAD~2")
	git(t, root, "branch", "-q", "-D", "w")
	git(t, root, "reflog", "expire", "--expire=now", "--all")
	if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "2 changed files (a, new) and its commits") {
		t.Errorf("rm ended with %d: %s", r.Code, r.Stderr)
	}
	in.Agbox(t, "apply", "demo").Want(t, 0).WantOutput(t, "M a\nA new\n", "")
}

// Each branch has its own versions, also if the folder has a later one.
func TestEachBranchGetsWhatItHasNot(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "gone": "g\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	apply := func(branch, outcomes string) {
		t.Helper()
		if r := in.Agbox(t, "apply", "demo", "--branch", branch).Want(t, 0); r.Stdout != outcomes {
			t.Errorf("to %s came %q, and not %q: %s", branch, r.Stdout, outcomes, r.Stderr)
		}
	}
	inside(t, in, "demo", "cd /workspace; echo n > new; rm gone; echo 2 >> a")
	apply("w", "M a\nD gone\nA new\n")
	apply("w2", "M a\nD gone\nA new\n")
	apply("w3", "M a\nD gone\nA new\n")
	inside(t, in, "demo", "cd /workspace; echo g2 > gone; echo n2 >> new")
	apply("w", "A gone\nM new\n")
	inside(t, in, "demo", "cd /workspace; echo g3 > gone; echo n3 >> new")
	apply("w", "M gone\nM new\n")
	inside(t, in, "demo", "cd /workspace; echo g > gone; rm new")
	apply("w2", "A gone\nD new\n")
	apply("w", "M gone\nD new\n")
	apply("w3", "A gone\nD new\n")
	inside(t, in, "demo", "cd /workspace; echo 3 >> a")
	in.Agbox(t, "apply", "demo").Want(t, 0)
	apply("w", "M a\n")
	apply("w", "")
	harness.WantSame(t, "the branch", git(t, root, "show", "w:a"), "1\n2\n3")
}

// With commits, a new branch begins with these, and not at HEAD.
func TestANewBranchGetsWhatOnlyHEADHas(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 >> a")
	in.Agbox(t, "apply", "demo", "--branch", "w").Want(t, 0)
	git(t, root, "merge", "-q", "w")
	inside(t, in, "demo", "cd /workspace; echo c > c; git add c; git commit -qm c")
	in.Agbox(t, "apply", "demo", "--branch", "new").Want(t, 0)
	harness.WantSame(t, "the branch", git(t, root, "show", "new:a", "new:c"), "1\n2\nc")
}
