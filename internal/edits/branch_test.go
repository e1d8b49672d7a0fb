package edits

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repo makes a repository with a commit of a tree. Nothing of the caller's settings counts.
func repo(t *testing.T, files tree, settings ...string) repository {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", "")
	g := repository{t, t.TempDir()}
	g.must("", "init", "-q", "-b", "main")
	g.set(append([]string{"user.name=Ann", "user.email=ann@example.org"}, settings...)...)
	files.write(t, g.dir)
	g.must("", "add", "-A")
	g.must("", "commit", "-q", "--allow-empty", "-m", "first")
	return g
}

// set writes settings into the repository.
func (g repository) set(settings ...string) {
	g.t.Helper()
	for _, one := range settings {
		key, value, _ := strings.Cut(one, "=")
		g.must("", "config", key, value)
	}
}

// settingsOfUser writes the user's own settings.
func settingsOfUser(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(os.Getenv("HOME"), ".gitconfig"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files returns the files of a commit as git stores them.
func (g repository) files(commit string) tree {
	g.t.Helper()
	tr := make(tree)
	for name := range strings.FieldsSeq(g.must("", "ls-tree", "-r", "--name-only", commit)) {
		tr[name] = g.must("", "cat-file", "blob", commit+":"+name)
	}
	return tr
}

// onBranch commits work on the branch fix.
func (g repository) onBranch(base, theirs tree, o BranchOptions) (Committed, error) {
	g.t.Helper()
	o.Folder, o.Branch, o.Message, o.Label = g.dir, "fix", "Work", "sandbox"
	return Commit(g.t.Context(), changes(g.t, base, theirs), o)
}

// mustBranch is onBranch without errors and conflicts.
func (g repository) mustBranch(base, theirs tree) Committed {
	g.t.Helper()
	out, err := g.onBranch(base, theirs, BranchOptions{})
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		g.t.Fatalf("%v: %+v", err, out.Outcomes)
	}
	return out
}

func TestFilesOutsideOfGitStayOutOfABranch(t *testing.T) {
	g := repo(t, tree{".gitignore": "/dist/\nnode_modules/\n", "a": "1\n", "old": "o\n"})
	g.must("", "rm", "-q", "old")
	g.must("", "commit", "-q", "-m", "second")
	base := tree{".gitignore": "/dist/\nnode_modules/\n", "a": "1\n", "old": "o\n", "dist/x.js": "1\n", "dist/gone": "1\n", "dist/moved": "m\n", "p/node_modules/m/i.js": "1\n", "notes": "n\n", "was": "w\n"}
	tree{"dist/x.js": "1\n", "notes": "n\n", "link": "l:/tmp"}.write(t, g.dir)
	theirs := tree{".gitignore": "/dist/\nnode_modules/\n", "a": "2\n", "old": "o\n", "dist/x.js": "2\n", "p/node_modules/m/i.js": "2\n", "moved": "m\n", "notes": "changed\n", "new": "n\n", "was": "w\n"}
	out := g.mustBranch(base, theirs)
	if want := []string{"dist/gone", "dist/x.js", "notes", "p/node_modules/m/i.js"}; !slices.Equal(out.Outside, want) {
		t.Errorf("outside of git are %q, not %q", out.Outside, want)
	}
	wantTree(t, "the branch", g.files("fix"), tree{".gitignore": "/dist/\nnode_modules/\n", "a": "2\n", "moved": "m\n", "new": "n\n"})
	// What the branch had and has removed is a conflict, not outside of git.
	theirs["old"] = "changed\n"
	if out, err := g.onBranch(base, theirs, BranchOptions{}); err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() != 1 {
		t.Errorf("a file that the branch has removed: %v: %+v", err, out.Outcomes)
	}
}

func TestABranchHasWhatGitStores(t *testing.T) {
	base := tree{"text": "1\r\n2\r\n", "kept": "1\r\n2\r\n", "up.x": "ABC\n", "bin": "\x00\r\n"}
	theirs := tree{"text": "1\r\ntwo\r\n", "kept": "1\r\ntwo\r\n", "up.x": "ABCD\n", "bin": "\x00\r\nnew", "new": "n\r\n", "new.x": "NEW\n"}
	g := repo(t, tree{"kept": "1\r\n2\r\n"})
	settingsOfUser(t, "[core]\n\tautocrlf = true\n[filter \"case\"]\n\tclean = tr A-Z a-z\n\trequired = true\n")
	tree{".gitattributes": "*.x filter=case\nbin -text\n", "text": "1\n2\n", "up.x": "abc\n", "bin": "\x00\r\n"}.write(t, g.dir)
	g.must("", "add", "-A")
	g.must("", "commit", "-q", "-m", "second")
	g.mustBranch(base, theirs)
	got := g.files("fix")
	delete(got, ".gitattributes")
	wantTree(t, "the branch", got, tree{"text": "1\ntwo\n", "kept": "1\r\ntwo\r\n", "up.x": "abcd\n", "bin": "\x00\r\nnew", "new": "n\n", "new.x": "new\n"})
	// Both sides change, and a renamed file stays one.
	g = repo(t, tree{"text": "1\n2\n3\n4\n5\n", "name": "a\nb\n"})
	settingsOfUser(t, "[core]\n\tautocrlf = input\n")
	g.must("", "checkout", "-q", "-b", "fix")
	tree{"text": "one\n2\n3\n4\n5\n"}.write(t, g.dir)
	g.must("", "commit", "-qam", "mine")
	g.must("", "checkout", "-q", "main")
	g.mustBranch(tree{"text": "1\r\n2\r\n3\r\n4\r\n5\r\n", "name": "a\r\nb\r\n"}, tree{"text": "1\r\n2\r\n3\r\n4\r\nfive\r\n", "moved": "a\r\nb\r\n"})
	wantTree(t, "the branch of both", g.files("fix"), tree{"text": "one\n2\n3\n4\nfive\n", "moved": "a\nb\n"})
}

func TestLargeFilesOfGitLFSComeToABranch(t *testing.T) {
	g := repo(t, tree{})
	settingsOfUser(t, "[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n\tprocess = git-lfs filter-process\n\trequired = true\n")
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(os.Getenv("HOME"), ".gitconfig"))
	lfs := func(args ...string) string { // with the user's settings
		return g.must("", append([]string{"-c", "include.path=" + filepath.Join(os.Getenv("HOME"), ".gitconfig")}, args...)...)
	}
	tree{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "a.bin": "one\x00", "b.bin": "same\x00"}.write(t, g.dir)
	lfs("add", "-A")
	g.must("", "commit", "-q", "-m", "large")
	if pointer := g.files("main")["a.bin"]; !strings.HasPrefix(pointer, "version https://git-lfs") {
		t.Fatalf("git-lfs stored %q", pointer)
	}
	g.mustBranch(tree{"a.bin": "one\x00", "b.bin": "same\x00"}, tree{"a.bin": "two\x00", "moved.bin": "same\x00", "new.bin": "new\x00"})
	if err := os.RemoveAll(filepath.Join(g.dir, "b.bin")); err != nil {
		t.Fatal(err)
	}
	lfs("checkout", "-q", "-f", "fix")
	got := load(t, g.dir)
	delete(got, ".gitattributes")
	wantTree(t, "the work tree", got, tree{"a.bin": "two\x00", "moved.bin": "same\x00", "new.bin": "new\x00"})
}

func TestNothingRunsOfTheSettingsOfARepository(t *testing.T) {
	dir := t.TempDir()
	ran, run := filepath.Join(dir, "ran"), filepath.Join(dir, "run")+" "
	tree{"run": "x:#!/bin/sh\necho $1 >>" + ran + "\n"}.write(t, dir)
	g := repo(t, tree{"a": "1\n", "b": "of the branch\n", ".gitattributes": "*.x filter=x\n"})
	hooks := t.TempDir()
	for _, name := range []string{"reference-transaction", "post-checkout", "post-index-change", "update", "pre-auto-gc"} {
		tree{name: "x:#!/bin/sh\n" + run + "hook\n"}.write(t, hooks)
		tree{".git/hooks/" + name: "x:#!/bin/sh\n" + run + "hook\n"}.write(t, g.dir)
	}
	g.set("core.hooksPath="+hooks, "core.fsmonitor="+run+"fsmonitor", "filter.x.clean="+run+"clean", "filter.x.smudge="+run+"smudge",
		"filter.x.process="+run+"process", "filter.x.required=true", "core.repositoryFormatVersion=1", "extensions.partialClone=evil", "remote.evil.promisor=true",
		"remote.evil.url=ext::"+run+"ext", "protocol.ext.allow=always", "protocol.allow=always", "remote.evil.uploadpack="+run+"uploadpack",
		"core.sshCommand="+run+"ssh", "core.alternateRefsCommand="+run+"refs", "credential.helper=!"+run+"helper", "core.pager="+run+"pager", "diff.external="+run+"diff",
		"uploadpack.packObjectsHook="+run+"pack", "gpg.program="+run+"gpg", "commit.gpgSign=true", "core.gitProxy="+run+"proxy", "trace2.eventTarget="+ran)
	wantNone := func() {
		t.Helper()
		if said, err := os.ReadFile(ran); err == nil {
			t.Errorf("it ran %s", said)
		}
	}
	base := tree{"a": "1\n", "b": "1\n"}
	g.mustBranch(base, tree{"a": "2\n", "b": "1\n"})
	wantNone()
	_, err := g.onBranch(base, tree{"a": "2\n", "b": "1\n", "new.x": "x\n"}, BranchOptions{})
	if refused := new(FilterError); !errors.As(err, &refused) || !slices.Equal(refused.Filters, []string{"x"}) {
		t.Errorf("a filter that nobody agreed to: %v", err)
	}
	wantNone()
	// An object that only the remote has.
	object := strings.TrimSpace(repository{t, g.dir}.must("", "-c", "core.fsmonitor=false", "rev-parse", "main:b"))
	if err := os.Remove(filepath.Join(g.dir, ".git/objects", object[:2], object[2:])); err != nil {
		t.Fatal(err)
	}
	if out, err := g.onBranch(base, tree{"a": "1\n", "b": "2\n"}, BranchOptions{}); err == nil {
		t.Errorf("without the object: %+v", out)
	}
	wantNone()
	// With a yes, the filter runs.
	if _, err := g.onBranch(base, tree{"a": "2\n", "b": "1\n", "new.x": "x\n"}, BranchOptions{Filters: true}); err == nil {
		t.Error("a filter that fails is no error")
	}
	if said, err := os.ReadFile(ran); err != nil || strings.Trim(string(said), "process\n") != "" {
		t.Errorf("with a yes ran %q, %v", said, err)
	}
}
