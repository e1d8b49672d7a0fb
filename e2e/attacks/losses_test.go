package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// asks checks that rm does not remove a sandbox, and what it says.
func asks(t *testing.T, in *harness.Install, sandbox, want string) {
	t.Helper()
	if r := in.Agbox(t, "rm", sandbox); r.Code != 4 || !strings.Contains(r.Stderr, want) {
		t.Errorf("rm of %s: %d %s, want %q", sandbox, r.Code, r.Stderr, want)
	}
}

// asksStopped is asks while the sandbox is stopped.
func asksStopped(t *testing.T, in *harness.Install, sandbox, want string) {
	t.Helper()
	in.Must(t, "stop", sandbox)
	asks(t, in, sandbox, want)
	in.Must(t, "start", sandbox)
}

// Without a commit that was copied in, commits do not come to a branch, but they are work.
func TestTheFirstCommitsOfAFolderAreNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "the first commits of a folder")
	in := harness.New(t)
	const commits = "set -e; cd /workspace; git init -q -b main .; git add .; git commit -qm one; git switch -qc topic; echo 1 > b; git add .; git commit -qm topic; git switch -q main; echo 2 > a; git commit -qam two"
	for _, name := range []string{"without", "empty"} {
		root := write(t, in, name, map[string]string{"a": "1\n"})
		if name == "empty" {
			git(t, root, "init", "-q", "-b", "main")
		}
		in.Create(t, name, harness.ImageDebian, append(withGit(t), "--workspace", root)...)
		inside(t, in, name, commits)
		tip := func(branch string) string {
			return strings.TrimSpace(inside(t, in, name, "git -C /workspace rev-parse --short=12 "+branch))
		}
		other := "commits of 1 other branch (topic up to " + tip("topic") + "). "
		asks(t, in, name, "would lose 1 changed file (a) and its commits up to "+tip("main")+" and "+other)
		in.Must(t, "apply", name)
		advice := "`agbox exec " + name + " -- git bundle create /tmp/all '--exclude=refs/agbox/*' --all`, `agbox cp " + name + ":/tmp/all FILE` and in the folder (after `git init`, if git has no repository there) " +
			"`git fetch --no-tags --no-recurse-submodules FILE \"*:refs/agbox/" + name + "/$(date +%s)/*\"` bring the commits. `agbox rm -f"
		asks(t, in, name, "would lose "+other+advice)
		in.Must(t, "exec", name, "--", "git", "bundle", "create", "/tmp/all", "--all")
		file := filepath.Join(in.Home, name+".bundle")
		in.Must(t, "cp", name+":/tmp/all", file)
		git(t, root, "init", "-q", "-b", "main")
		git(t, root, "fetch", "-q", file, "refs/heads/*:refs/heads/from/*")
		in.Must(t, "rm", name) // the repository has them now
	}
	// A branch has one commit of all, and apply says so once.
	root := write(t, in, "branch", map[string]string{"a": "1\n"})
	git(t, root, "init", "-q", "-b", "main")
	in.Create(t, "branch", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "branch", commits)
	for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"commit", "-q", "--allow-empty", "-m", "mine"}} {
		git(t, root, args...)
	}
	for _, said := range []bool{true, false} {
		r := in.Agbox(t, "apply", "branch", "--branch", "fix").Want(t, 0)
		if strings.Contains(r.Stderr, "agbox: The sandbox has commits, but not on top of one that was copied and that "+root+" still has: all its work is one commit. `agbox exec branch -- git bundle create /tmp/all '--exclude=refs/agbox/*' --all`, `agbox cp branch:/tmp/all FILE` and in the folder `git fetch --no-tags --no-recurse-submodules FILE \"*:refs/agbox/branch/$(date +%s)/*\"` bring the commits.\n") != said {
			t.Errorf("apply says %q, want the sentence: %t", r.Stderr, said)
		}
	}
	if got := git(t, root, "log", "--format=%s", "fix"); got != "Work of sandbox branch\nmine" {
		t.Errorf("the branch has %q", got)
	}
}

// HEAD may name a branch by a symbolic reference, or in a form that agbox does not read.
func TestHeadOfASandboxIsFollowedAsByGit(t *testing.T) {
	t.Parallel()
	Row(t, 131, "HEAD through a symbolic reference, and references as tables")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "set -e; cd /workspace; git symbolic-ref refs/heads/alias refs/heads/main; git switch -q alias; echo 2 > a; git commit -qam one; echo 3 > a; git commit -qam two")
	asks(t, in, "demo", "its commits up to ")
	in.Must(t, "apply", "demo", "--branch", "fix")
	if got := git(t, root, "log", "--format=%s", "fix"); got != "two\none\nfirst" {
		t.Errorf("the branch has %q", got)
	}
	in.Must(t, "rm", "demo")

	in.Create(t, "tables", harness.ImageDebian, "--workspace", root)
	// As git makes it with --ref-format=reftable, which this git may not know.
	inside(t, in, "tables", "cd /workspace/.git; rm -r refs packed-refs; mkdir refs reftable; echo 'ref: refs/heads/.invalid' > HEAD; echo 'this repository uses the reftable format' > refs/heads; echo 2 > ../a")
	why := "The references of git in the sandbox are not the files that agbox reads"
	asks(t, in, "tables", "would lose 1 changed file (a) and any commits that are not brought back, which could not be read ("+why+").")
	refused := in.Agbox(t, "apply", "tables", "--branch", "other").Want(t, 4)
	harness.WantSame(t, "why", refused.Stderr, "agbox: "+why+". --squash makes one commit of its files.\n")
	in.Must(t, "apply", "tables", "--branch", "other", "--squash")
	asks(t, in, "tables", "would lose any commits that are not brought back, which could not be read ("+why+").")
}

// What git stash has put aside is work.
func TestAStashIsNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "a stash")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	for _, text := range []string{"2\n", "3\n"} { // the user's own
		write(t, in, "project", map[string]string{"a": text})
		git(t, root, "stash", "-q")
	}
	in.Create(t, "same", harness.ImageDebian, "--workspace", root)
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	in.Must(t, "rm", "same")
	inside(t, in, "demo", "set -e; cd /workspace; echo 4 > a; git stash -q; echo 5 > a; git stash -q")
	git(t, root, "stash", "drop", "-q")
	const advice = "`agbox exec demo -- git stash pop` takes the newest stash back, for `agbox apply demo`. If that conflicts, git keeps the stash: resolve the files in the sandbox first, " +
		"or `agbox exec demo -- git stash show -p --binary --include-untracked >FILE` writes it as a patch."
	asks(t, in, "demo", "would lose 2 stashes of git. "+advice)
	inside(t, in, "demo", "cd /workspace; git pack-refs --all")
	asksStopped(t, in, "demo", "would lose 2 stashes of git. ")
	in.Must(t, "exec", "demo", "--", "git", "stash", "pop", "-q")
	asks(t, in, "demo", "would lose 1 changed file (a) and 1 stash of git. `agbox diff demo` shows the changes")
	in.Must(t, "apply", "demo")
	asks(t, in, "demo", "would lose 1 stash of git. "+advice)
	// A link is not followed, and what is too large is not read.
	inside(t, in, "demo", "cd /workspace/.git; truncate -s 20M logs/refs/stash")
	asks(t, in, "demo", "would lose any commits that are not brought back, which could not be read (A file of git in the sandbox, with references or its index, is too large) and 1 stash of git.")
	inside(t, in, "demo", "cd /workspace/.git; rm logs/refs/stash; mkdir -p refs; rm -f refs/stash; ln -s ../HEAD refs/stash")
	asks(t, in, "demo", "would lose any commits that are not brought back, which could not be read (The references of git in the sandbox are not the files that agbox reads).")
	inside(t, in, "demo", "set -e; cd /workspace; rm .git/refs/stash; git stash clear; echo 6 > a; printf '\\0' > new; git stash -qu; echo 7 > a; git commit -qam seven")
	asks(t, in, "demo", advice)
	in.Agbox(t, "exec", "demo", "--", "git", "stash", "pop", "-q").Want(t, 1)
	patch := in.Agbox(t, "exec", "demo", "--", "git", "stash", "show", "-p", "--binary", "--include-untracked").Want(t, 0)
	write(t, in, "project", map[string]string{"patch": patch.Stdout})
	git(t, root, "checkout", "-q", "a")
	git(t, root, "apply", "patch")
	for name, want := range map[string]string{"a": "6\n", "new": "\x00"} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s of the folder has %q, %v", name, got, err)
		}
	}
	inside(t, in, "demo", "set -e; cd /workspace; git reset -q --hard HEAD~1; git clean -qfd; git stash drop -q; echo 5 > a")
	in.Must(t, "rm", "demo")
}

// What was excluded from the copy comes with commits only.
func TestExcludedFilesThatASandboxCommitsAreNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "files that were excluded from the copy and are committed")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "gen/tracked": "1\n"})
	flags := append(withGit(t), "--workspace", root, "--exclude", "gen")
	in.Create(t, "same", harness.ImageDebian, flags...)
	inside(t, in, "same", "cd /workspace; echo 2 > a; git commit -qm same a")
	in.Must(t, "apply", "same")
	in.Must(t, "rm", "same") // that git tracks what was excluded is not new
	in.Create(t, "demo", harness.ImageDebian, flags...)
	inside(t, in, "demo", "set -e; cd /workspace; echo 3 > a; mkdir gen; echo 1 > gen/x; git add gen/x; git commit -qm gen a gen/x")
	in.Must(t, "apply", "demo")
	asks(t, in, "demo", "would lose its commits up to "+inside(t, in, "demo", "cd /workspace; printf %.12s $(git rev-parse HEAD)")+". `agbox apply demo --branch NAME` brings the commits.")
	in.Must(t, "apply", "demo", "--branch", "fix")
	if got := git(t, root, "show", "fix:gen/x"); got != "1" {
		t.Errorf("the branch has %q", got)
	}
	in.Must(t, "rm", "demo")
}

// As the help of --exclude says.
func TestExcludedFilesThatASandboxWritesComeHomeOnlyWithAll(t *testing.T) {
	t.Parallel()
	Row(t, 130, "files that were excluded from the copy and are not committed")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", "gen/tracked": "1\n"})
	flags := append(withGit(t), "--workspace", root, "--exclude", "gen")
	for _, name := range []string{"demo", "other"} {
		in.Create(t, name, harness.ImageDebian, flags...)
		inside(t, in, name, "cd /workspace; mkdir gen; echo 2 > gen/tracked; echo 1 > gen/x")
	}
	harness.WantSame(t, "what is new", in.Must(t, "diff", "demo", "--name-only"), "")
	in.Must(t, "rm", "demo")
	harness.WantSame(t, "with --all", in.Must(t, "apply", "other", "gen/x", "--all"), "A gen/x")
	in.Must(t, "rm", "other")
}

// What only a tag or another reference names is work, unless it was fetched.
func TestCommitsThatOnlyATagNamesAreNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits that only a tag names")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	git(t, root, "tag", "-a", "-m", "mine", "v1")
	git(t, root, "tag", "contents", "HEAD:a")
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", `set -e; cd /workspace; git switch -q --detach
echo 2 > a; git commit -qam two; git tag keep; git update-ref refs/remotes/origin/x HEAD~0
echo 3 > a; git commit -qam three; git update-ref refs/remotes/origin/main HEAD; git symbolic-ref refs/remotes/origin/HEAD refs/remotes/origin/main
git switch -q main`)
	tip := strings.TrimSpace(inside(t, in, "demo", "git -C /workspace rev-parse --short=12 keep"))
	const advice = "`agbox exec demo -- git bundle create /tmp/all '--exclude=refs/agbox/*' --all`, `agbox cp demo:/tmp/all FILE` and in the folder `git fetch --no-tags --no-recurse-submodules FILE \"*:refs/agbox/demo/$(date +%s)/*\"` bring the commits."
	want := "would lose commits of 1 tag or other reference (tags/keep up to " + tip + "). " + advice
	asks(t, in, "demo", want)
	inside(t, in, "demo", "cd /workspace; git pack-refs --all")
	asks(t, in, "demo", want)
	asksStopped(t, in, "demo", want)
	inside(t, in, "demo", "set -e; cd /workspace; git tag -a -m noted noted keep; git tag -d keep; git update-ref refs/notes/commits noted~0")
	asks(t, in, "demo", "would lose commits of 2 tags or other references (notes/commits up to "+tip+", tags/noted up to ")
	in.Must(t, "exec", "demo", "--", "git", "bundle", "create", "/tmp/all", "--all")
	file := filepath.Join(in.Home, "bundle")
	in.Must(t, "cp", "demo:/tmp/all", file)
	git(t, root, "fetch", "-q", file, "refs/tags/*:refs/tags/*")
	in.Must(t, "rm", "demo")

	in.Create(t, "branch", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "branch", "set -e; cd /workspace; echo 4 > a; git commit -qam four; git tag between; echo 5 > a; git commit -qam five; git tag last")
	in.Must(t, "apply", "branch", "--branch", "fix")
	in.Must(t, "rm", "branch")
}

// A repository in a folder of the workspace does not come home with the files.
func TestCommitsOfNestedRepositoriesAreNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits of nested repositories")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	other := write(t, in, "other", map[string]string{"o": "1\n"})
	lib := write(t, in, "project/lib", map[string]string{"l": "1\n"})
	for _, dir := range []string{other, lib} {
		git(t, dir, "init", "-q", "-b", "main")
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-q", "-m", "first")
	}
	write(t, in, "project", map[string]string{".gitignore": "lib\ncache\n"})
	git(t, root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", other, "sub")
	git(t, root, "add", "-A")
	git(t, root, "commit", "-q", "-m", "submodule")
	in.Create(t, "same", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	in.Must(t, "rm", "same")

	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	const commit = "git commit -q --allow-empty -m "
	const bundle = "`agbox exec demo -- git -C lib bundle create /tmp/all '--exclude=refs/agbox/*' --all`, `agbox cp demo:/tmp/all FILE` and in the folder `git fetch --no-tags --no-recurse-submodules FILE \"*:refs/agbox/demo-lib-"
	inside(t, in, "demo", "set -e; cd /workspace/lib; git switch -qc topic; "+commit+"two; git switch -q main")
	want := "would lose commits or stashes of 1 nested repository (lib). " + bundle
	asks(t, in, "demo", want)
	asksStopped(t, in, "demo", want)
	in.Must(t, "exec", "demo", "--", "git", "-C", "lib", "bundle", "create", "/tmp/all", "--all")
	file := filepath.Join(in.Home, "bundle")
	in.Must(t, "cp", "demo:/tmp/all", file)
	git(t, lib, "fetch", "-q", file, "refs/heads/*:refs/heads/from/*")

	// A stash, a submodule, a new repository, and another work tree of that.
	inside(t, in, "demo", "set -e; cd /workspace; echo 2 > lib/l; git -C lib stash -q; cd sub; git switch -q --detach; "+commit+"sub; git switch -q main")
	asks(t, in, "demo", "would lose commits or stashes of 1 nested repository (lib). ")
	inside(t, in, "demo", "set -e; cd /workspace; git -C lib stash clear; cd sub; git tag keep HEAD@{1}; cd ..; git init -q new/one; cd new/one; "+commit+"one; git worktree add -q --detach ../two; cd ../two; "+commit+"two")
	for _, running := range []bool{true, false} {
		if !running {
			in.Must(t, "stop", "demo")
		}
		asks(t, in, "demo", "commits or stashes of 3 nested repositories (new/one, new/two, sub). ")
	}
	in.Must(t, "start", "demo")
	inside(t, in, "demo", "set -e; cd /workspace; rm -r new; git -C sub tag -d keep; rm -r lib/.git; ln -s ../.git lib/.git")
	asks(t, in, "demo", "would lose any commits that are not brought back, which could not be read (The references of git in the sandbox are not the files that agbox reads).")
	inside(t, in, "demo", "cd /workspace; rm lib/.git; i=0; while [ $i -le 256 ]; do mkdir -p many/$i/.git; i=$((i+1)); done")
	asks(t, in, "demo", "which could not be read (The workspace has more than 256 nested repositories of git).")
	inside(t, in, "demo", "rm -r /workspace/many")
	in.Must(t, "rm", "demo")
}

// What a sandbox makes in ignored folders is in no difference.
func TestRepositoriesAndWorkTreesInIgnoredFoldersAreNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "repositories and work trees in ignored folders")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", ".gitignore": "ign\ntrees\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "set -e; cd /workspace; mkdir -p ign/deep; echo 1 > ign/file; git worktree add -q -b side trees/x; cd trees/x; echo 2 > a; git commit -qam two")
	commits := "commits of 1 other branch (side up to " + inside(t, in, "demo", "cd /workspace; printf %.12s $(git rev-parse side)") + ")"
	const (
		nested = "commits or stashes of 1 nested repository (ign/deep/m)"
		tree   = `what may not be committed in the ignored work tree "trees/x"`
	)
	for _, one := range []struct{ script, want string }{
		{":", "would lose " + tree + " and " + commits + ". "},
		{"git init -q ign/deep/m; git -C ign/deep/m commit -q --allow-empty -m one", "would lose " + tree + " and " + commits + " and " + nested + ". "},
		{"rm -r ign/deep/m; cd trees/x; git switch -q --detach; git branch -qf side main", "would lose " + tree + " and commits or stashes of 1 nested repository (trees/x). "},
		{"cd trees/x; git switch -q side; echo 5 > new", "would lose " + tree + ". `agbox exec "},
	} {
		inside(t, in, "demo", "set -e; cd /workspace; "+one.script)
		asks(t, in, "demo", one.want)
		asksStopped(t, in, "demo", one.want)
	}
	inside(t, in, "demo", "cd /workspace; ! git worktree remove trees/x; rm trees/x/new; git worktree remove trees/x")
	in.Must(t, "rm", "demo")
}

// Of an index that is not read as a whole, agbox does not know which ignored files git tracks.
func TestAnIndexThatIsNotReadIsAskedAbout(t *testing.T) {
	t.Parallel()
	Row(t, 130, "ignored files that only a split index names")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", ".gitignore": "ign\n"})
	git(t, root, "update-index", "--split-index")
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	in.Create(t, "same", harness.ImageDebian, "--workspace", root)
	in.Must(t, "rm", "same") // it was so before
	inside(t, in, "demo", "set -e; cd /workspace; mkdir ign; echo 1 > ign/x; git update-index --split-index; git add -f ign/x")
	const remedy = "git config core.splitIndex false && git update-index --no-split-index --index-version 4"
	const want = "would lose any ignored files that git tracks, because its index cannot be read (it is split). In /workspace of the sandbox, `" + remedy + "` writes an index that can be read."
	asks(t, in, "demo", want)
	asksStopped(t, in, "demo", want)
	inside(t, in, "demo", "cd /workspace; "+remedy)
	asks(t, in, "demo", "would lose 1 changed file (ign/x). ")
}

// The folder gets what HEAD has: it loses the files of a commit that HEAD has left.
func TestWhatLeftTheFolderAgainIsAskedAbout(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits whose files left the folder again")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "set -e; cd /workspace; git switch -qc side; echo 1 > made; git add made; git commit -qm made")
	in.Must(t, "apply", "demo")
	inside(t, in, "demo", "cd /workspace; git switch -q main")
	in.Must(t, "apply", "demo")
	asks(t, in, "demo", "would lose commits of 1 other branch (side up to ")
	inside(t, in, "demo", "cd /workspace; git switch -q side")
	in.Must(t, "apply", "demo")
	in.Must(t, "rm", "demo")
}

// A sandbox that is made anew is removed first.
func TestASandboxIsNotMadeAnewWithWhatOnlyItHas(t *testing.T) {
	t.Parallel()
	Row(t, 130, "a sandbox is made anew")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n"})
	flags := append([]string{"up", "--image", harness.ImageDebian, "--name", "demo"}, withGit(t)...)
	from(t, in, root, flags...).Want(t, 0)
	inside(t, in, "demo", "set -e; cd /workspace; git switch -q --detach; git commit -q --allow-empty -m two; git tag keep; git switch -q main; git init -q .lib; git -C .lib commit -q --allow-empty -m lib")
	r := from(t, in, root, append(flags, "--recreate", "--env", "A=b")...)
	if r.Code != 4 || !strings.Contains(r.Stderr, "would lose commits of 1 tag or other reference (tags/keep up to ") || !strings.Contains(r.Stderr, " nested repository (.lib). ") {
		t.Errorf("up: %d %s", r.Code, r.Stderr)
	}
}

// The file .git of a workspace may name the repository, as after git init --separate-git-dir.
func TestCommitsOfARepositoryElsewhereAreNotLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits of a repository outside of the workspace")
	in := harness.New(t)
	root := committed(t, in, map[string]string{"a": "1\n", ".gitignore": "ign\n"})
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	tip := func(of string) string {
		return strings.TrimSpace(inside(t, in, "demo", "git -C /workspace rev-parse --short=12 "+of))
	}
	inside(t, in, "demo", "set -e; cd /workspace; git init -q --separate-git-dir /root/gd; git switch -qc topic; echo 2 > a; git commit -qam topic; git switch -q main")
	asks(t, in, "demo", "would lose commits of 1 other branch (topic up to "+tip("topic")+"). ")
	asksStopped(t, in, "demo", "would lose any commits that are not brought back, which could not be read (")
	inside(t, in, "demo", "set -e; cd /workspace; git branch -qD topic; echo 3 > a; git stash -q; echo 4 > a; git stash -q")
	asks(t, in, "demo", "would lose 2 stashes of git. ")
	inside(t, in, "demo", "set -e; cd /workspace; git stash clear; echo 1 > ign; git add -f ign")
	asks(t, in, "demo", "would lose 1 changed file (ign). ")
	asksStopped(t, in, "demo", "would lose 1 changed file (ign) and any commits that are not brought back, which could not be read (")
	inside(t, in, "demo", "set -e; cd /workspace; git rm -qf ign; echo 5 > a; git commit -qam two; echo 6 > a; git commit -qam three; echo loose > loose; echo 1 > ign; git add -f ign; git commit -qm ign")
	asks(t, in, "demo", "would lose 3 changed files (a, ign, loose) and its commits up to "+tip("HEAD")+". ")
	in.Must(t, "apply", "demo", "--branch", "fix")
	if got := git(t, root, "log", "--format=%s", "--skip=1", "fix"); got != "ign\nthree\ntwo\nfirst" {
		t.Errorf("the branch has %q", got)
	}
	for name, want := range map[string]string{"a": "6", "loose": "loose", "ign": "1"} {
		if got := git(t, root, "show", "fix:"+name); got != want {
			t.Errorf("%s of the branch has %q", name, got)
		}
	}
	in.Must(t, "rm", "demo")

	// A file that names nothing is no repository, for git too. It can name anything.
	write(t, in, "nothing", map[string]string{"a": "1\n", ".git": "gitdir: /nowhere\n"})
	in.Create(t, "nothing", harness.ImageDebian, "--workspace", filepath.Join(in.Home, "nothing"))
	in.Must(t, "rm", "nothing")
	in.Create(t, "nothing", harness.ImageDebian, "--workspace", filepath.Join(in.Home, "nothing"))
	for _, to := range []string{"/dev/zero", "/proc/self/fd", "`printf %04080d 1`", ".git"} {
		inside(t, in, "nothing", "rm -f /workspace/.git; echo \"gitdir: "+to+"\" > /workspace/.git")
		in.Must(t, "diff", "nothing")
	}
	in.Must(t, "rm", "-f", "nothing")
}
