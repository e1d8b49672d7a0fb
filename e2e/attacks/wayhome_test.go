package attacks

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAJournalThatASandboxLeavesIsNoInstruction(t *testing.T) {
	t.Parallel()
	Row(t, 4, "a journal of agbox apply in a mounted workspace")
	in := harness.New(t)
	dir := write(t, in, "project", map[string]string{"a": "1\n", ".envrc": "of the user\n"})
	version := func(text string) map[string]any {
		return map[string]any{"Size": len(text), "Sum": sha256.Sum256([]byte(text))}
	}
	journal, err := json.Marshal(map[string]any{"Sandbox": "demo", "Steps": []any{map[string]any{
		"Kind": 1, "Path": []byte(".envrc"), "Old": version("of the user\n"), "New": version("hostile\n"), "Staged": "1",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	in.Create(t, "hostile", harness.ImageBusybox, "--mount-workspace", dir)
	inside(t, in, "hostile", "cd /workspace; ! echo x >.envrc; mkdir -m 700 .agbox-apply; cd .agbox-apply; echo hostile >1; echo '"+string(journal)+"' >journal")
	in.Create(t, "demo", harness.ImageBusybox, "--workspace", dir)
	inside(t, in, "demo", "echo 2 >/workspace/a")
	r := in.Agbox(t, "apply", "demo").Want(t, 0)
	if r.Stdout != "M a\n" || !strings.Contains(r.Stderr, dir+"/.agbox-apply is not used") {
		t.Errorf("apply said %s%s", r.Stdout, r.Stderr)
	}
	for name, want := range map[string]string{"a": "2\n", ".envrc": "of the user\n", ".agbox-apply/1": "hostile\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q: %v", name, got, err)
		}
	}
}

func TestCommitsOfASandboxBringNothingUnaskedThatTheHostWouldExecute(t *testing.T) {
	t.Parallel()
	Row(t, 124, "commits with a file that editors execute, taken out again; hooks and settings beside them")
	in := harness.New(t)
	dir := project(t, in)
	git(t, dir, "config", "user.name", "a")
	git(t, dir, "config", "user.email", "a@b")
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", dir)...)
	inside(t, in, "demo", `set -e; cd /workspace; export GIT_AUTHOR_NAME=Agent
		echo two >>main.c; git commit -qam second
		mkdir -p .git/hooks; printf '#!/bin/sh\ntouch /tmp/ran\n' >.git/hooks/reference-transaction; chmod +x .git/hooks/reference-transaction; git config core.fsmonitor /tmp/x; git tag evil; git branch other
		echo '{}' >.vscode/tasks.json; git add .; git commit -qm third; git rm -q .vscode/tasks.json; git commit -qm fourth; ln -s /etc/passwd link; echo three >>main.c`)
	r := in.Agbox(t, "apply", "demo", "--branch", "fix")
	if r.Code == 0 || !strings.Contains(r.Stderr, `A .vscode/tasks.json  (VS Code`) || !strings.Contains(r.Stderr, "--yes-executable brings them, and --squash makes one commit without it.") {
		t.Errorf("unasked: %d %s", r.Code, r.Stderr)
	}
	harness.WantSame(t, "the branches", git(t, dir, "branch", "--format=%(refname:short)"), "main\ntree")
	harness.WantSame(t, "one commit", in.Agbox(t, "apply", "demo", "--branch", "flat", "--squash", "--check").Want(t, 0).Stdout, "A link\nM main.c\n")
	in.Must(t, "stop", "demo")
	for _, branch := range []string{"fix", "again"} {
		r = in.Agbox(t, "apply", "demo", "--branch", branch, "--yes-executable").Want(t, 0)
		if !strings.Contains(r.Stderr, "3 commits of the sandbox, whose authors and dates are what it says:") || !strings.Contains(r.Stderr, " fourth\n") {
			t.Errorf("with a yes: %s", r.Stderr)
		}
	}
	harness.WantSame(t, "the history", git(t, dir, "log", "--format=%an %s", "fix~1"), "Agent fourth\nAgent third\nAgent second\na first")
	for _, branch := range []string{"fix", "again"} {
		harness.WantSame(t, "the work", git(t, dir, "show", branch+":main.c"), "int main;\ntwo\nthree")
		harness.WantSame(t, "what was not committed", git(t, dir, "log", "-2", "--format=%an %s", branch), "a Work of sandbox demo\nAgent fourth")
	}
	harness.WantSame(t, "what came besides", git(t, dir, "for-each-ref", "--format=%(refname)"), "refs/heads/again\nrefs/heads/fix\nrefs/heads/main\nrefs/heads/tree")
	wantThere(t, dir, false, ".git/hooks/reference-transaction", ".vscode/tasks.json", "link")
	git(t, dir, "fsck", "--strict")
}

// A submodule is the name of a commit. Git does nothing with it unless a .gitmodules says where it is.
func TestSubmodulesInCommitsAreAskedAboutIfGitMayFetchThem(t *testing.T) {
	t.Parallel()
	Row(t, 124, "a nested repository is committed, without and with a .gitmodules")
	in := harness.New(t)
	root := write(t, in, "demo", map[string]string{"a": "1\n"})
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"add", "."}, {"commit", "-q", "-m", "first"}} {
		git(t, root, args...)
	}
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", `set -e; cd /workspace; exec 2>&1; git init -q nest; echo n >nest/f; git -C nest add f; git -C nest commit -qm nest; git add nest; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),bare; git commit -qm second`)
	nest := strings.TrimSpace(inside(t, in, "demo", "git -C /workspace/nest rev-parse HEAD"))
	r := in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 0)
	for _, want := range []string{"because a submodule has them: nest/f. `agbox apply demo nest/f` brings them to the folder.\n", "agbox: Of submodules the branch has only the commit, and no files: bare.\n"} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("without a .gitmodules it says %s", r.Stderr)
		}
	}
	harness.WantSame(t, "the submodule", git(t, root, "ls-tree", "fix", "nest"), "160000 commit "+nest+"\tnest")

	inside(t, in, "demo", `set -e; cd /workspace; printf '[submodule "nest"]\n\tpath = nest\n\turl = https://example.org/nest\n' >.gitmodules; git add .gitmodules; git commit -qm third`)
	r = in.Agbox(t, "apply", "demo", "--branch", "unasked").Want(t, 4)
	if !strings.Contains(r.Stderr, "A nest  (git, at `git submodule update`, which fetches files that nobody has looked at)\n") || !strings.Contains(r.Stderr, "--yes-executable brings them, and --squash makes one commit without it.") {
		t.Errorf("with a .gitmodules it says %s", r.Stderr)
	}
	in.Agbox(t, "apply", "demo", "--branch", "asked", "--yes-executable").Want(t, 0)
	harness.WantSame(t, "the submodule", git(t, root, "ls-tree", "asked", "nest"), "160000 commit "+nest+"\tnest")
	in.Agbox(t, "apply", "demo", "--branch", "flat", "--squash", "--yes-executable").Want(t, 0)
	harness.WantSame(t, "its files", git(t, root, "ls-tree", "--name-only", "-r", "flat"), ".gitmodules\na\nnest/f")
	harness.WantSame(t, "the branches", git(t, root, "branch", "--format=%(refname:short)"), "asked\nfix\nflat\nmain")
}

// References that cannot be read are in the way of commits only.
func TestReferencesOfASandboxStopNoFiles(t *testing.T) {
	t.Parallel()
	Row(t, 131, "a HEAD of 100,000 bytes")
	in := harness.New(t)
	root := write(t, in, "demo", map[string]string{"a": "1\n"})
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"add", "."}, {"commit", "-q", "-m", "first"}} {
		git(t, root, args...)
	}
	in.Create(t, "demo", harness.ImageDebian, append(withGit(t), "--workspace", root)...)
	inside(t, in, "demo", "cd /workspace; echo 2 > a; head -c 100000 /dev/zero > .git/HEAD")
	in.Agbox(t, "apply", "demo", "--branch", "fix").Want(t, 4)
	in.Must(t, "apply", "demo", "--branch", "fix", "--squash")
	if got := git(t, root, "show", "fix:a"); got != "2" {
		t.Errorf("the branch has %q", got)
	}
}

// What git tracks inside is work although the copied .gitignore names it, and commits are work too.
func TestAnIgnoredFileThatASandboxCommitsIsNotLost(t *testing.T) {
	t.Parallel()
	Row(t, 130, "an ignored file that is committed")
	in := harness.New(t)
	for i, how := range []struct {
		stopped, sync bool
		apply         []string
		prints        string
	}{
		{prints: "A b\nA dist/x.js\n"}, {apply: []string{"--branch", "fix", "--squash"}, prints: "A b\nA dist/x.js\n"},
		{apply: []string{"--branch", "fix"}, prints: ""}, {stopped: true, prints: "A b\nA dist/x.js\n"}, {sync: true},
	} {
		name := fmt.Sprint("demo", i)
		root := write(t, in, name, map[string]string{".gitignore": "/dist/\n", "a": "1\n"})
		for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"add", "."}, {"commit", "-q", "-m", "first"}} {
			git(t, root, args...)
		}
		in.Create(t, name, harness.ImageDebian, append(withGit(t), "--workspace", root)...)
		inside(t, in, name, "cd /workspace; mkdir dist; echo 1 > dist/x.js; echo 1 > dist/other; echo 1 > b; git add -f b dist/x.js; git commit -qm 'Add it'")
		tip := strings.TrimSpace(inside(t, in, name, "git -C /workspace rev-parse --short=12 HEAD"))
		if how.stopped {
			in.Must(t, "stop", name)
		}
		in.Agbox(t, "diff", name, "--name-only").WantOutput(t, "b\ndist/x.js\n", "")
		lost := fmt.Sprintf("its commits up to %s. `agbox diff %[2]s` shows the changes, `agbox apply %[2]s` brings them back. `agbox apply %[2]s --branch NAME` brings the commits.", tip, name)
		if r := in.Agbox(t, "rm", name); r.Code != 4 || !strings.Contains(r.Stderr, "would lose 2 changed files (b, dist/x.js) and "+lost) {
			t.Errorf("rm: %d %s", r.Code, r.Stderr)
		}
		in.Must(t, "apply", name, "--branch", "part", "dist")
		if r := in.Agbox(t, "rm", name); r.Code != 4 || !strings.Contains(r.Stderr, "would lose 1 changed file (b) and its commits up to "+tip) {
			t.Errorf("rm when a part came: %d %s", r.Code, r.Stderr)
		}
		if how.sync {
			in.Must(t, "sync", name)
			in.Must(t, "rm", name)
			continue
		}
		r := in.Agbox(t, append([]string{"apply", name}, how.apply...)...).Want(t, 0)
		if how.apply == nil {
			harness.WantSame(t, "the files", r.Stdout, how.prints)
		}
		in.Must(t, "rm", name)
	}
}

// Commits are work on every branch, except those that the folder's repository has.
func TestNoBranchOfASandboxIsLostSilently(t *testing.T) {
	t.Parallel()
	Row(t, 130, "commits of other branches")
	in := harness.New(t)
	root := write(t, in, "demo", map[string]string{"a": "1\n"})
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.org"}, {"add", "."}, {"commit", "-q", "-m", "first"},
		{"switch", "-q", "-c", "of-the-folder"}, {"commit", "-q", "--allow-empty", "-m", "second"}, {"switch", "-q", "main"},
	} {
		git(t, root, args...)
	}
	flags := append(withGit(t), "--workspace", root)
	commits := "set -e; cd /workspace; git switch -qc fix; echo 2 > a; git commit -qam fix; git pack-refs --all; git switch -qc deep/two main; echo 3 > a; git commit -qam two; git switch -q main"
	in.Create(t, "demo", harness.ImageDebian, flags...)
	inside(t, in, "demo", commits)
	tip := func(branch string) string {
		return strings.TrimSpace(inside(t, in, "demo", "git -C /workspace rev-parse --short=12 "+branch))
	}
	lost := fmt.Sprintf("commits of 2 other branches (deep/two up to %s, fix up to %s)", tip("deep/two"), tip("fix"))
	says := func(want string) {
		t.Helper()
		if r := in.Agbox(t, "rm", "demo"); r.Code != 4 || !strings.Contains(r.Stderr, "would lose "+want) {
			t.Errorf("rm: %d %s, want %q", r.Code, r.Stderr, want)
		}
	}
	says(lost + ". `agbox exec demo -- git switch --ignore-other-worktrees BRANCH` goes to one of its branches. Then `agbox apply demo --branch NAME` brings the commits. If git refuses that, `agbox exec demo -- git bundle create ")
	inside(t, in, "demo", "git -C /workspace commit -q --allow-empty -m head")
	head := tip("HEAD")
	// References that cannot be read hide neither files nor the commits of HEAD.
	inside(t, in, "demo", "cd /workspace; echo 4 > a; cp .git/packed-refs /tmp/packed; truncate -s 20M .git/packed-refs")
	says("1 changed file (a) and its commits up to " + head + " and any commits that are not brought back, which could not be read (")
	inside(t, in, "demo", "cd /workspace; cp /tmp/packed .git/packed-refs; git reset -q --hard HEAD~")
	in.Must(t, "stop", "demo")
	says(lost)
	in.Must(t, "start", "demo")
	inside(t, in, "demo", "git -C /workspace worktree add -q /tmp/other fix")
	for _, branch := range []string{"fix", "deep/two"} {
		in.Must(t, "exec", "demo", "--", "git", "switch", "--ignore-other-worktrees", branch)
		in.Must(t, "apply", "demo", "--branch", branch)
	}
	in.Must(t, "rm", "demo")
	more := "cd /workspace; git switch -qc more; echo 5 > a; git commit -qam more; git switch -q main"
	r := in.Agbox(t, append(append([]string{"run", "--rm"}, flags...), harness.ImageDebian, "sh", "-c", more)...).Want(t, 0)
	if !strings.Contains(r.Stderr, "--rm removes the sandbox with commits of 1 other branch (more up to ") || !strings.Contains(r.Stderr, "`agbox apply`, for commits with --branch, could bring that back.") {
		t.Errorf("run --rm says %q", r.Stderr)
	}
}
