package attacks

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// fetchesAll does what rm says about a bundle: the commands of agbox anywhere, that of git in the folder.
func fetchesAll(t *testing.T, in *harness.Install, sandbox, root string) {
	t.Helper()
	said := in.Agbox(t, "rm", sandbox).Want(t, 4).Stderr
	file := filepath.Join(in.Home, "bundle-"+strings.ReplaceAll(sandbox, ".", ""))
	fetched := false
	for _, found := range regexp.MustCompile("`([^`]*(bundle create|agbox cp|git init|git fetch)[^`]*)`").FindAllStringSubmatch(said, -1) {
		line := strings.ReplaceAll(found[1], "FILE", file)
		if args, ours := strings.CutPrefix(line, "agbox "); ours {
			in.Must(t, strings.Fields(strings.ReplaceAll(args, "'", ""))...)
			continue
		}
		fetched = fetched || found[2] == "git fetch"
		cmd := exec.CommandContext(harness.Bounded(t), "sh", "-c", line)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	if !fetched {
		t.Fatalf("rm says %q", said)
	}
}

// What rm says about a bundle brings what every reference and a detached HEAD name, whatever the name of the sandbox.
func TestTheBundleThatRmNamesBringsAllReferences(t *testing.T) {
	t.Parallel()
	Row(t, 130, "a bundle of branches, tags, notes, a stash and a detached HEAD")
	in := harness.New(t)
	other := write(t, in, "other", map[string]string{"o": "1\n"})
	git(t, other, "init", "-q", "-b", "main")
	git(t, other, "add", ".")
	git(t, other, "commit", "-q", "-m", "first")
	root := committed(t, in, map[string]string{"a": "1\n"})
	git(t, root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", other, "sub")
	git(t, root, "commit", "-q", "-m", "submodule")
	const work = `set -e; cd /workspace; echo 2 > a; git stash -q; git notes add -m note; c='git commit -q --allow-empty -m'
git switch -qc side; $c side; git tag -am noted v1; git switch -q --detach main; $c lost; git tag keep; git reset -q --hard main
git -C sub commit -q --allow-empty -m sub; git commit -qm head sub`
	for _, name := range []string{"demo", "my_box..a.lock"} {
		in.Create(t, name, harness.ImageDebian, append(withGit(t), "--workspace", root)...)
		inside(t, in, name, work)
		fetchesAll(t, in, name, root)
		in.Must(t, "rm", name)
		if got := git(t, root, "tag", "--list"); got != "" {
			t.Errorf("the folder has the tags %q", got)
		}
	}
	// A folder without a repository, and HEAD on a branch that has no commit.
	root = write(t, in, "without", map[string]string{"a": "1\n"})
	in.Create(t, "without", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "without", "set -e; cd /workspace; git init -q -b main; git add .; git commit -qm one; git switch -q --orphan new; git checkout -q main -- a; git rm -q --cached a")
	fetchesAll(t, in, "without", root)
	in.Must(t, "rm", "without")
	// A nested repository, which the folder does not have, beside its own commits.
	root = committed(t, in, map[string]string{".gitignore": "lib\n"})
	in.Create(t, "nested", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "nested", "set -e; cd /workspace; git init -q lib; cd lib; echo 1 > l; git add .; git commit -qm one; git switch -q --detach; git commit -q --allow-empty -m two; echo 2 > l; git stash -q")
	fetchesAll(t, in, "nested", root)
	in.Must(t, "rm", "nested")
}

// Git refuses another branch during a rebase, and over files that are not committed: a bundle brings it.
func TestCommitsOfABranchThatGitCannotSwitchToComeByABundle(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits of another branch during a rebase")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "set -e; cd /workspace; git switch -qc topic; echo 2 > a; git commit -qam two; git switch -q main; echo 3 > a; git commit -qam three; ! git rebase topic >/dev/null 2>&1; git checkout -q topic -- a")
	asks(t, in, "demo", "brings the commits. If git refuses that, `agbox exec demo -- git bundle create /tmp/all '--exclude=refs/agbox/*' --all`, `agbox cp demo:/tmp/all FILE`")
	in.Agbox(t, "exec", "demo", "--", "git", "switch", "--ignore-other-worktrees", "topic").Want(t, 128)
	fetchesAll(t, in, "demo", root)
	inside(t, in, "demo", "cd /workspace; git rebase --abort; git reset -q --hard")
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	in.Must(t, "rm", "demo")
}
