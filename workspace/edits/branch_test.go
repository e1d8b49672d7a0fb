package edits

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// repo makes a repository with a commit of a tree.
func repo(t *testing.T, files tree, settings ...string) repository {
	t.Helper()
	g := repository{t: t, dir: t.TempDir()}
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

// settingsOfUser makes the home of a user with settings for git.
func settingsOfUser(t *testing.T, text string) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	if err := os.WriteFile(filepath.Join(os.Getenv("HOME"), ".gitconfig"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files returns the files of a commit as git stores them.
func (g repository) files(commit string) tree {
	g.t.Helper()
	tr := make(tree)
	var names, objects []string
	for line := range strings.Lines(g.must("", "ls-tree", "-r", commit)) {
		words := strings.Fields(line)
		names, objects = append(names, words[3]), append(objects, words[2]+"\n")
	}
	rest := g.must(strings.Join(objects, ""), "cat-file", "--batch=%(objectsize)")
	for _, name := range names {
		size, text, _ := strings.Cut(rest, "\n")
		n, err := strconv.Atoi(size)
		if err != nil {
			g.t.Fatal(err)
		}
		tr[name], rest = text[:n], text[n+1:]
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
	t.Parallel()
	g := repo(t, tree{".gitignore": "/dist/\nnode_modules/\n", "a": "1\n", "old": "o\n"})
	g.must("", "rm", "-q", "old")
	g.must("", "commit", "-q", "-m", "second")
	base := tree{".gitignore": "/dist/\nnode_modules/\n", "a": "1\n", "old": "o\n", "dist/x.js": "1\n", "dist/gone": "1\n", "dist/moved": "m\n", "p/node_modules/m/i.js": "1\n", "notes": "n\n", "was": "w\n"}
	tree{"dist/x.js": "1\n", "notes": "n\n", "link": "l:/tmp"}.write(t, g.dir)
	theirs := tree{".gitignore": "/dist/\nnode_modules/\n", "a": "2\n", "old": "o\n", "dist/x.js": "2\n", "p/node_modules/m/i.js": "2\n", "moved": "m\n", "notes": "changed\n", "new": "n\n", "was": "w\n"}
	out := g.mustBranch(base, theirs)
	if want := []string{"dist/gone", "dist/moved", "dist/x.js", "notes", "p/node_modules/m/i.js"}; !slices.Equal(out.Outside, want) {
		t.Errorf("outside of git are %q, not %q", out.Outside, want)
	}
	wantTree(t, "the branch", g.files("fix"), tree{".gitignore": "/dist/\nnode_modules/\n", "a": "2\n", "moved": "m\n", "new": "n\n"})
	// What the branch had and has removed is a conflict, not outside of git.
	theirs["old"] = "changed\n"
	if out, err := g.onBranch(base, theirs, BranchOptions{}); err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() != 1 {
		t.Errorf("a file that the branch has removed: %v: %+v", err, out.Outcomes)
	}
}

// What the branch had and has removed is found by its path, whatever that is, and however many
// others there are.
func TestPathsOfAnyKindAreFoundInTheHistoryOfABranch(t *testing.T) {
	t.Parallel()
	strange := tree{"line\nbreak": "1\n", "end\r": "1\n", "*": "1\n", "?[x]\\\nz": "1\n", ":(top)x": "1\n", "-x": "1\n", "--": "1\n", "d/ x": "1\n"}
	g := repo(t, strange)
	tree{".git/info/exclude": "/dist/\n"}.write(t, g.dir)
	g.must("", "rm", "-q", "-r", ".")
	g.commit("second", tree{"lineXbreak": "1\n", "any": "1\n"})
	g.must("", "rm", "-q", "-r", ".")
	g.must("", "commit", "-q", "--allow-empty", "-m", "third")
	base, theirs := tree{"line\tbreak": "1\n"}, tree{"line\tbreak": "2\n"}
	outside := []string{"line\tbreak"}
	for name := range strange {
		base[name], theirs[name] = "1\n", "2\n"
	}
	long := strings.Repeat(strings.Repeat("x", 250)+"/", 15)
	for i := range 600 {
		name := fmt.Sprintf("%s%03d", long, i)
		base[name], theirs["dist/"+name] = name, name // a renamed one
		outside = append(outside, name, "dist/"+name)
	}
	slices.Sort(outside)
	out, err := g.onBranch(base, theirs, BranchOptions{})
	if err != nil || !slices.Equal(out.Outside, outside) || (Applied{Outcomes: out.Outcomes}).Conflicts() != len(strange) {
		t.Errorf("%v: %d are outside of git, and %+v", err, len(out.Outside), out.Outcomes)
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

// Only what git has comes with the commits of a sandbox, and git-lfs has contents beside it.
func TestContentsThatGitLFSHasInsideOnlyAreNamed(t *testing.T) {
	t.Parallel()
	pointer := func(digit string) (id, text string) {
		id = strings.Repeat(digit, 64)
		return id, "version https://git-lfs.github.com/spec/v1\noid sha256:" + id + "\nsize 12345\n"
	}
	g := repo(t, tree{"a": "a\n"})
	_, others := pointer("4")
	g.must("", "checkout", "-q", "-b", "feature") // its content may be on a server
	g.commit("feature", tree{"others.bin": others})
	g.must("", "checkout", "-q", "main")
	copied, in := g.head(), g.inside()
	in.must("", "merge", "-q", "--no-ff", "feature")
	here, withHere := pointer("1")
	_, before := pointer("2")
	_, now := pointer("3")
	in.commit("one", tree{"here.bin": withHere, "b.bin": before, "like": strings.Replace(now, "oid", "old", 1)})
	in.commit("two", tree{"here.bin": withHere, "b.bin": now, "like": "l\n", "c.bin": before})
	tree{here[:2] + "/" + here[2:4] + "/" + here: "content"}.write(t, filepath.Join(g.dir, ".git", "lfs", "objects"))
	for range 2 {
		out, err := g.bringHistory(in, copied, tree{"a": "a\n"})
		if err != nil || !slices.Equal(out.LFS, []string{"b.bin"}) && !slices.Equal(out.LFS, []string{"b.bin", "c.bin"}) {
			t.Errorf("%v: in the sandbox only are contents of %q", err, out.LFS)
		}
		g.must("", "branch", "-q", "-D", "fix") // the repository keeps the objects
	}
}

func TestNothingRunsOfTheSettingsOfARepository(t *testing.T) {
	t.Parallel()
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
	object := strings.TrimSpace(repository{t: t, dir: g.dir}.must("", "-c", "core.fsmonitor=false", "rev-parse", "main:b"))
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
	if said, err := os.ReadFile(ran); err != nil || strings.Trim(strings.ReplaceAll(string(said), "process\n", ""), "\n") != "" {
		t.Errorf("with a yes ran %q, %v", said, err)
	}
}

// inside clones the repository as a copy into a sandbox does.
func (g repository) inside() repository {
	g.t.Helper()
	in := repository{g.t, filepath.Join(g.t.TempDir(), "work"), g.config}
	if out, err := exec.CommandContext(g.t.Context(), "cp", "-a", g.dir, in.dir).CombinedOutput(); err != nil {
		g.t.Fatalf("%v: %s", err, out)
	}
	return in
}

// commit writes files, removes those without content, and commits.
func (g repository) commit(message string, files tree) string {
	g.t.Helper()
	for name, text := range files {
		if err := os.RemoveAll(filepath.Join(g.dir, name)); err != nil {
			g.t.Fatal(err)
		}
		if text != "" {
			tree{name: text}.write(g.t, g.dir)
		}
	}
	g.must("", "add", "-Af")
	g.must("", "commit", "-q", "--allow-empty", "--author=Agent <agent@inside>", "--date=2001-02-03T04:05:06Z", "-m", message)
	return g.head()
}

func (g repository) head() string { return strings.TrimSpace(g.must("", "rev-parse", "HEAD")) }

// history is what the client passes of a sandbox's repository.
func (g repository) history(copied string, base tree) *History {
	h := &History{Copied: copied, Tip: g.head(), Agree: func(_, _ []Change) error { return nil }, Base: make(map[string]*File)}
	for name, text := range base {
		h.Base[name] = version(text)
	}
	h.Objects = func(w io.Writer) error {
		// Whole first: tar is killed if nobody reads what comes behind the end of an archive.
		archive, err := exec.CommandContext(g.t.Context(), "tar", "-C", filepath.Join(g.dir, ".git"), "-c", "objects").Output()
		if err != nil {
			return err
		}
		_, err = w.Write(archive)
		return err
	}
	h.Read = func(name string, most int64) ([]byte, error) {
		text, err := os.ReadFile(filepath.Join(g.dir, name))
		return text[:min(int64(len(text)), most)], err
	}
	return h
}

// bringHistory commits what a sandbox has on the branch fix, with its commits.
func (g repository) bringHistory(in repository, copied string, base tree) (Committed, error) {
	g.t.Helper()
	work := load(g.t, in.dir)
	h := in.history(copied, base)
	out, err := Commit(g.t.Context(), differences(g.t, base, work), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err == nil && (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		g.t.Errorf("conflicts: %+v", out.Outcomes)
	}
	return out, err
}

func TestTheCommitsOfASandboxComeAsTheyAre(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n2\n3\n", "b": "b\n", "gone": "g\n", "back": "as copied\n"}
	g := repo(t, base)
	copied := g.head()
	in := g.inside()
	in.commit("one", tree{"a": "1\ntwo\n3\n", "back": "changed\n"})
	in.must("", "checkout", "-q", "-b", "side", "HEAD^")
	in.commit("side", tree{"b": "side\n"})
	in.must("", "checkout", "-q", "main")
	in.must("", "merge", "-q", "--no-ff", "-m", "merge", "side")
	in.must("", "gc", "-q") // the objects are in a pack
	last := in.commit("three", tree{"gone": "", "new": "x:n\n", "l": "l:/etc"})
	tree{"a": "1\ntwo\nthree\n", "back": "as copied\n", "more": "m\n"}.write(t, in.dir)
	g.commit("mine", tree{"own": "o\n"}) // the folder's branch goes on
	status := g.must("", "status", "--porcelain")
	out, err := g.bringHistory(in, copied, base)
	if err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), tree{"a": "1\ntwo\nthree\n", "b": "side\n", "back": "as copied\n", "new": "n\n", "l": "/etc", "more": "m\n"})
	if got := strings.TrimSpace(g.must("", "rev-parse", "fix^")); got != last || len(out.Commits) != 4 || out.Commits[3].Subject != "three" || len(out.Links) != 1 {
		t.Errorf("the commits are %+v on top of %s, links %v", out.Commits, got, out.Links)
	}
	if got := g.must("", "log", "-1", "--format=%an %ae %ad %s", "--date=iso", "fix^"); got != "Agent agent@inside 2001-02-03 04:05:06 +0000 three\n" {
		t.Errorf("a commit is by %s", got)
	}
	g.must("", "fsck", "--strict")
	if got := g.must("", "status", "--porcelain"); got != status {
		t.Errorf("the status is %s", got)
	}
	// More of it comes on top of both. The branch has a commit that the sandbox does not have.
	theirs := load(t, in.dir)
	in.commit("four", tree{"b": "four\n"})
	if out, err = g.bringHistory(in, copied, theirs); err != nil || len(out.Commits) != 1 {
		t.Fatalf("%v: %+v", err, out)
	}
	if got := g.must("", "log", "--format=%s", "--first-parent", "fix"); got != "Work\nWork\nthree\nmerge\none\nfirst\n" {
		t.Errorf("the branch is %s", got)
	}
	if got := g.must("", "log", "-1", "--format=%s", "fix^2"); got != "four\n" {
		t.Errorf("the second parent is %s", got)
	}
	if again, err := g.bringHistory(in, copied, load(t, in.dir)); err != nil || again.Commit != "" {
		t.Errorf("once more: %v %+v", err, again)
	}
}

// What the comparison does not show is as the commits have it: nobody took it back.
func TestACommitKeepsWhatTheComparisonDoesNotShow(t *testing.T) {
	t.Parallel()
	base := tree{".gitignore": "dist/\n", "a": "1\n", "kept": "k\n", "large": "small\n", "gone": "g\n"}
	for _, own := range []bool{false, true} {
		g := repo(t, base)
		copied := g.commit("secret", tree{".env": "s\n", "run": "x:r\n"})
		in := g.inside()
		if own {
			g.must("", "checkout", "-q", "-b", "fix")
			g.commit("mine", tree{"own": "o\n"})
			g.must("", "checkout", "-q", "main")
		}
		// .env and run were left out of the copy, and gone was brought to another branch before.
		in.commit("one", tree{"dist/x.js": "x\n", ".env": "", "run": "", "gone": "", "large": "large\n", "back": "b\n", "a": "2\n"})
		tree{"dist/x.js": "changed\n", "dist/new": "n\n"}.write(t, in.dir)
		if err := os.Remove(filepath.Join(in.dir, "back")); err != nil {
			t.Fatal(err)
		}
		h := in.history(copied, tree{".gitignore": "dist/\n", "a": "1\n", "kept": "k\n", "large": "small\n"})
		h.Copy = in.history(copied, base).Base
		h.Apart = map[string]bool{"dist/x.js": true, "dist/new": true, "large": true}
		out, err := Commit(t.Context(), differences(t, tree{"a": "1\n"}, tree{"a": "2\n"}), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", History: h})
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%v: %+v", err, out)
		}
		want := tree{".gitignore": "dist/\n", "a": "2\n", "kept": "k\n", "large": "large\n", "dist/x.js": "x\n", ".env": "s\n", "run": "r\n"}
		if own {
			want["own"] = "o\n"
		}
		wantTree(t, "the branch", g.files("fix"), want)
		restored := slices.ContainsFunc(out.Outcomes, func(o Outcome) bool { return o.Path == ".env" && o.Kind == Written })
		if mode := g.must("", "ls-tree", "fix", "run"); !strings.HasPrefix(mode, "100755") || restored == own {
			t.Errorf("run is %s, and the outcomes are %+v", mode, out.Outcomes)
		}
	}
}

// What the copy left out, the sandbox did not remove: commits from before the copy bring it to a
// branch that is older.
func TestWhatWasLeftOutOfTheCopyIsOnABranchAsItWasCommitted(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		g := repo(t, tree{"a": "1\n", "docs/x": "x\n", "docs/gone": "g\n"})
		g.must("", "checkout", "-q", "-b", "fix")
		want := tree{"a": "2\n", "docs/x": "xx\n", "docs/new": "n\n"}
		if own {
			g.commit("mine", tree{"own": "o\n"})
			want["own"] = "o\n"
		}
		g.must("", "checkout", "-q", "main")
		copied := g.commit("of main", tree{"docs/x": "xx\n", "docs/new": "n\n", "docs/gone": ""})
		in := g.inside()
		in.commit("one", tree{"a": "2\n"})
		h := in.history(copied, tree{"a": "1\n"}) // without docs
		h.Copy = h.Base
		out, err := Commit(t.Context(), differences(t, tree{"a": "1\n"}, tree{"a": "2\n"}), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", History: h})
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%v: %+v", err, out)
		}
		wantTree(t, fmt.Sprintf("the branch, with own commits: %t", own), g.files("fix"), want)
	}
}

// A commit removes a tracked file that the copy left out, and the workspace has a new one in its
// place, which nobody brings.
func TestAFileThatWasLeftOutOfTheCopyStaysIfTheSandboxMakesItAnew(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		g := repo(t, tree{"f": "1\n", "node_modules/m": "m\n", "node_modules/k": "2\n"})
		copied := g.head()
		want := tree{"f": "2\n", "node_modules/m": "m\n", "node_modules/k": "2\n"}
		if own {
			g.must("", "checkout", "-q", "-b", "fix")
			g.commit("mine", tree{"own": "o\n"})
			g.must("", "checkout", "-q", "main")
			want["own"] = "o\n"
		}
		in := g.inside()
		in.commit("del", tree{"node_modules/m": "", "node_modules/k": ""})
		tree{"f": "2\n", "node_modules/m": "installed\n"}.write(t, in.dir)
		h := in.history(copied, tree{"f": "1\n"})
		h.Copy, h.Apart = h.Base, map[string]bool{"node_modules/m": true}
		out, err := Commit(t.Context(), differences(t, tree{"f": "1\n"}, tree{"f": "2\n"}), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", History: h})
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%v: %+v", err, out)
		}
		wantTree(t, fmt.Sprintf("the branch, with own commits: %t", own), g.files("fix"), want)
	}
}

func TestABranchThatIsRebasedOrBisectedStays(t *testing.T) {
	t.Parallel()
	for what, begin := range map[string]func(g repository){
		"rebase": func(g repository) {
			g.must("", "checkout", "-q", "fix")
			g.must("", "-c", "sequence.editor=sed -i s/^pick/edit/", "rebase", "-q", "-i", "main")
		},
		"bisect": func(g repository) {
			g.must("", "checkout", "-q", "fix")
			g.must("", "bisect", "start", "fix", "main~")
		},
		"rebase of a worktree": func(g repository) {
			desk := repository{t: g.t, dir: filepath.Join(g.t.TempDir(), "desk")}
			g.must("", "worktree", "add", "-q", desk.dir, "fix")
			desk.must("", "-c", "sequence.editor=sed -i s/^pick/edit/", "rebase", "-q", "-i", "main")
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := repo(t, tree{"a": "1\n"})
			g.must("", "checkout", "-q", "-b", "fix")
			g.commit("one", tree{"r": "1\n"})
			g.commit("two", tree{"r": "2\n"})
			g.must("", "checkout", "-q", "main")
			g.commit("of main", tree{"m": "m\n"})
			begin(g)
			before := g.must("", "for-each-ref") + g.must("", "reflog", "fix")
			if out, err := g.onBranch(tree{"a": "1\n"}, tree{"a": "2\n"}, BranchOptions{}); err == nil || !strings.Contains(err.Error(), "a rebase or bisection of a work tree will move the branch fix") {
				t.Errorf("%v: %+v", err, out)
			}
			if after := g.must("", "for-each-ref") + g.must("", "reflog", "fix"); after != before {
				t.Errorf("the branches are %s, not %s", after, before)
			}
		})
	}
}

func TestNoBranchIsNamedAsGitRefusesIt(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n"})
	for _, name := range []string{"HEAD", "-x", "@{-1}", "a..b", ""} {
		out, err := Commit(t.Context(), changes(t, tree{"a": "1\n"}, tree{"a": "2\n"}), BranchOptions{Folder: g.dir, Branch: name, Message: "Work"})
		if err == nil || !strings.Contains(err.Error(), "cannot be the name of a branch") {
			t.Errorf("%q: %v: %+v", name, err, out)
		}
	}
}

// Git itself makes some branches whose names it takes for something else afterwards.
func TestABranchIsNotNamedAsAnotherReference(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n"})
	bring := func(name string) error {
		_, err := Commit(t.Context(), changes(t, tree{"a": "1\n"}, tree{"a": "2\n"}), BranchOptions{Folder: g.dir, Branch: name, Message: "Work"})
		return err
	}
	for name, says := range map[string]string{
		"refs/heads/x/y": `write "x/y"`, "refs/tags/x": "name another one", "@": "name another one", "HEAD": "name another one", "FETCH_HEAD": "name another one",
		"CHERRY_PICK_HEAD": "name another one", "AUTO_MERGE": "name another one", "heads/main": "name another one", "tags/v1": "name another one", "stash": "name another one",
	} {
		if err := bring(name); err == nil || !strings.Contains(err.Error(), "cannot be the name of a branch") || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, args := range []string{"tag v1", "tag v2/x", "branch v3", "tag v3"} {
		g.must("", strings.Fields(args)...)
	}
	if err := bring("v1"); err == nil || !strings.Contains(err.Error(), "there is a tag v1, which git would take for the branch") {
		t.Errorf("a tag: %v", err)
	}
	for _, name := range []string{"x/refs/y", "WIP", "stash-2", "head", "AHEAD", "v2", "v3"} {
		if err := bring(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Variables of the caller name the author and the committer, as for git. Its other variables do not count.
func TestTheEnvironmentNamesTheAuthor(t *testing.T) {
	g := repo(t, tree{"a": "1\n"})
	g.must("", "config", "user.useConfigOnly", "true")
	g.must("", "config", "--unset", "user.name")
	g.must("", "config", "--unset", "user.email")
	if _, err := g.onBranch(tree{"a": "1\n"}, tree{"a": "2\n"}, BranchOptions{}); !errors.Is(err, errUnknownUser) {
		t.Errorf("without an author: %v", err)
	}
	for name, value := range map[string]string{
		"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org", "GIT_COMMITTER_NAME": "Bob", "GIT_COMMITTER_EMAIL": "bob@example.org", "GIT_INDEX_FILE": "/none", "GIT_DIR": "/none",
	} {
		t.Setenv(name, value)
	}
	g.mustBranch(tree{"a": "1\n"}, tree{"a": "2\n"})
	for _, name := range []string{"GIT_INDEX_FILE", "GIT_DIR"} {
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.must("", "log", "-1", "--format=%an <%ae> %cn <%ce>", "fix"); got != "Ann <ann@example.org> Bob <bob@example.org>\n" {
		t.Errorf("the commit is of %s", got)
	}
}

// What is in a submodule is no conflict of the repository around it.
func TestChangesInSubmodulesAreLeftAside(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n"})
	other := repository{t: t, dir: filepath.Join(g.dir, "sm")}
	if err := os.Mkdir(other.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other.must("", "init", "-q")
	other.commit("first", tree{"f": "1\n"})
	tree{"in": "in\n"}.write(t, g.dir)
	g.must("", "add", "sm", "in")
	g.must("", "commit", "-q", "-m", "second")
	// Of a renamed file, one half may be in a submodule.
	out := g.mustBranch(tree{"a": "1\n", "in": "in\n", "sm/f": "1\n", "sm/gone": "1\n", "sm/out": "out\n"}, tree{"a": "2\n", "out": "out\n", "sm/f": "2\n", "sm/in": "in\n", "sm/new": "n\n"})
	if want := []string{"sm/f", "sm/gone", "sm/in", "sm/new", "sm/out"}; !slices.Equal(out.Submodules, want) || len(out.Outside) > 0 {
		t.Errorf("in submodules are %q, not %q, and outside %q", out.Submodules, want, out.Outside)
	}
	if got := g.must("", "ls-tree", "-r", "--name-only", "fix") + g.must("", "show", "fix:a", "fix:out"); got != "a\nout\nsm\n2\nout\n" {
		t.Errorf("the branch has %q", got)
	}
}

// A submodule is the name of a commit. Git does nothing with it unless a .gitmodules says where it is.
func TestSubmodulesOfCommitsAreAskedAboutIfGitMayFetchThem(t *testing.T) {
	t.Parallel()
	const modules = "[submodule \"nest\"]\n\tpath = nest\n\turl = https://example.org/nest\n"
	for name, c := range map[string]struct {
		base, commit, branch, folder tree
		asked                        bool
	}{
		"no .gitmodules":      {},
		"copied":              {base: tree{".gitmodules": modules}, asked: true},
		"from the sandbox":    {commit: tree{".gitmodules": modules}, asked: true},
		"of the branch":       {branch: tree{".gitmodules": modules}, asked: true},
		"not committed":       {folder: tree{".gitmodules": modules}, asked: true},
		"of another folder":   {base: tree{"d/.gitmodules": modules}},
		"removed by a commit": {base: tree{".gitmodules": modules}, commit: tree{".gitmodules": ""}, asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			base := tree{"a": "1\n"}
			maps.Copy(base, c.base)
			g := repo(t, base)
			copied, in := g.head(), g.inside()
			if err := os.Mkdir(filepath.Join(in.dir, "nest"), 0o700); err != nil { // so that git keeps it
				t.Fatal(err)
			}
			in.must("", "update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("1", 40)+",nest")
			in.must("", "commit", "-q", "-m", "nest")
			if c.commit != nil {
				in.commit("more", c.commit)
			}
			in.must("", "update-index", "--cacheinfo", "160000,"+strings.Repeat("2", 40)+",nest")
			in.must("", "commit", "-q", "-m", "later")
			g.must("", "branch", "fix")
			if c.branch != nil {
				g.must("", "checkout", "-q", "fix")
				g.commit("modules", c.branch)
				g.must("", "checkout", "-q", "-")
			}
			c.folder.write(t, g.dir)
			h := in.history(copied, base)
			var asked []Change
			h.Agree = func(files, submodules []Change) error {
				if asked = submodules; slices.ContainsFunc(files, func(c Change) bool { return strings.HasPrefix(c.Path, "nest") }) {
					t.Errorf("among the files are %v", files)
				}
				return nil
			}
			out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", History: h})
			if c.asked != (len(asked) == 2) || !c.asked && asked != nil {
				t.Errorf("asked about %v", asked)
			}
			if c.branch != nil { // it cannot have both, and is not to lose one of them silently
				if !errors.As(err, new(*HistoryError)) || !strings.Contains(err.Error(), `"nest" is a submodule`) {
					t.Errorf("%v: %+v", err, out)
				}
				return
			}
			if err != nil || !slices.Equal(out.Gitlinks, []string{"nest"}) {
				t.Fatalf("%v: %+v", err, out)
			}
			if got := g.must("", "ls-tree", "fix", "nest"); got != "160000 commit "+strings.Repeat("2", 40)+"\tnest\n" {
				t.Errorf("the branch has %q", got)
			}
		})
	}
}

func TestARewrittenHistoryComesAsOneCommit(t *testing.T) {
	base := tree{"a": "1\n"}
	g := repo(t, base)
	copied := g.commit("second", tree{"a": "2\n"})
	base["a"] = "2\n"
	in := g.inside()
	tree{"a": "3\n"}.write(t, in.dir)
	in.must("", "commit", "-qa", "--amend", "-m", "amended")
	out, err := g.bringHistory(in, copied, base)
	if err != nil || !out.Rewritten || len(out.Commits) > 0 {
		t.Fatalf("%v: %+v", err, out)
	}
	if got := g.must("", "log", "--format=%s", "fix"); got != "Work\nsecond\nfirst\n" {
		t.Errorf("the branch is %s", got)
	}
}

func TestCommitsComeToAShallowRepository(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n"}
	full := repo(t, base)
	full.commit("second", tree{"a": "2\n"})
	g := repository{t: t, dir: filepath.Join(t.TempDir(), "shallow")}
	repository{t: t, dir: t.TempDir()}.must("", "clone", "-q", "--depth=1", "file://"+full.dir, g.dir)
	g.set("user.name=Ann", "user.email=ann@example.org")
	copied, base := g.head(), tree{"a": "2\n"}
	in := g.inside()
	in.must("", "checkout", "-q", "--detach")
	in.commit("three", tree{"a": "3\n"})
	if out, err := g.bringHistory(in, copied, base); err != nil || len(out.Commits) != 1 || out.Commit != in.head() {
		t.Fatalf("%v: %+v", err, out)
	}
	if got := g.must("", "log", "--format=%s", "fix"); got != "three\nsecond\n" {
		t.Errorf("the branch is %s", got)
	}
}

// A sandbox writes its repository without git too.
func TestHostileCommitsAreRefused(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n"}
	for name, harm := range map[string]func(in repository){
		"a .git in a tree": func(in repository) {
			blob := strings.TrimSpace(in.must("x\n", "hash-object", "-w", "--stdin"))
			config := strings.TrimSpace(in.must("100644 blob "+blob+"\tconfig\n", "mktree"))
			in.onTree(strings.TrimSpace(in.must("040000 tree "+config+"\t.GIT\n", "mktree")))
		},
		"a path out of the tree": func(in repository) {
			blob := strings.TrimSpace(in.must("x\n", "hash-object", "-w", "--stdin"))
			raw, err := hex.DecodeString(blob)
			if err != nil {
				in.t.Fatal(err)
			}
			in.onTree(strings.TrimSpace(in.must("100644 ../x\x00"+string(raw), "hash-object", "-w", "-t", "tree", "--stdin", "--literally")))
		},
		"settings of submodules that are a link": func(in repository) {
			blob := strings.TrimSpace(in.must("/etc/passwd", "hash-object", "-w", "--stdin"))
			in.onTree(strings.TrimSpace(in.must("120000 blob "+blob+"\t.gitmodules\n", "mktree")))
		},
		"a submodule whose address is a flag": func(in repository) {
			in.commit("flag", tree{".gitmodules": "[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n"})
		},
		"an object of another repository of the host": func(in repository) {
			other := repository{t: in.t, dir: in.t.TempDir()}
			other.must("", "init", "-q")
			blob := strings.TrimSpace(other.must("secret\n", "hash-object", "-w", "--stdin"))
			tree{"info/alternates": other.dir + "/.git/objects\n"}.write(in.t, filepath.Join(in.dir, ".git/objects"))
			in.onTree(strings.TrimSpace(in.must("100644 blob "+blob+"\tstolen\n", "mktree")))
		},
		"an object that is missing": func(in repository) {
			in.commit("new", tree{"new": "n\n"})
			object := strings.TrimSpace(in.must("", "rev-parse", "HEAD:new"))
			if err := os.Remove(filepath.Join(in.dir, ".git/objects", object[:2], object[2:])); err != nil {
				in.t.Fatal(err)
			}
		},
		"an object under the name of another one": func(in repository) {
			in.commit("new", tree{"new": "n\n", "other": "o\n"})
			at := func(name string) string {
				object := strings.TrimSpace(in.must("", "rev-parse", "HEAD:"+name))
				return filepath.Join(in.dir, ".git/objects", object[:2], object[2:])
			}
			if err := os.Rename(at("other"), at("new")); err != nil {
				in.t.Fatal(err)
			}
			in.must("o\n", "hash-object", "-w", "--stdin")
		},
		"trees in trees that stand for 10^10 paths": func(in repository) { in.onTree(in.nested(10)) },
		"the same in a commit whose files the next one removes": func(in repository) {
			in.onTree(in.nested(10))
			in.onTree(strings.TrimSpace(in.must("", "rev-parse", "HEAD~:")))
		},
		"a pack that is none": func(in repository) {
			in.commit("new", tree{"new": "n\n"})
			in.must("", "gc", "-q")
			packs, err := filepath.Glob(filepath.Join(in.dir, ".git/objects/pack/*.pack"))
			if err != nil || len(packs) != 1 || os.Chmod(packs[0], 0o600) != nil || os.WriteFile(packs[0], []byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff"), 0o600) != nil {
				in.t.Fatalf("%v, %v", packs, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := repo(t, base)
			copied := g.head()
			in := g.inside()
			harm(in)
			before := g.must("", "for-each-ref") + g.must("", "count-objects", "-v")
			h := in.history(copied, base)
			out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", History: h})
			if !errors.As(err, new(*HistoryError)) || !strings.Contains(err.Error(), "--squash") || strings.Contains(err.Error(), "hint:") {
				t.Errorf("%v: %+v", err, out)
			}
			if after := g.must("", "for-each-ref") + g.must("", "count-objects", "-v"); after != before {
				t.Errorf("the repository has %s, not %s", after, before)
			}
		})
	}
}

// onTree makes HEAD a commit with a tree.
func (g repository) onTree(object string) {
	g.t.Helper()
	g.must("", "update-ref", "HEAD", strings.TrimSpace(g.must("", "commit-tree", object, "-p", "HEAD", "-m", "hostile")))
}

// nested makes a tree of 10 equal trees of 10 equal trees, and so on.
func (g repository) nested(depth int) string {
	g.t.Helper()
	object := strings.TrimSpace(g.must("x\n", "hash-object", "-w", "--stdin"))
	kind := "100644 blob "
	for range depth {
		var list strings.Builder
		for i := range 10 {
			fmt.Fprintf(&list, "%s%s\t%d\n", kind, object, i)
		}
		object, kind = strings.TrimSpace(g.must(list.String(), "mktree")), "040000 tree "
	}
	return object
}

func TestLongSubjectsAndLinksOfASandboxAreCut(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n"}
	g := repo(t, base)
	copied := g.head()
	in := g.inside()
	for name, text := range map[string]string{"text": strings.Repeat("long ", 1<<20), "no text": "\xff" + strings.Repeat("\u0301", 1<<20)} {
		message := filepath.Join(t.TempDir(), name)
		tree{name: text}.write(t, filepath.Dir(message))
		in.must("", "commit", "-q", "--allow-empty", "-F", message)
	}
	blob := strings.TrimSpace(in.must(strings.Repeat("x", 1<<20), "hash-object", "-w", "--stdin"))
	in.onTree(strings.TrimSpace(in.must("120000 blob "+blob+"\tlink\n", "mktree")))
	out, err := g.bringHistory(in, copied, base)
	if err != nil || len(out.Commits) != 3 || len(out.Links) != 1 {
		t.Fatalf("%v: %d commits, %d links", err, len(out.Commits), len(out.Links))
	}
	for _, one := range out.Commits {
		if len(one.Subject) > maxSubject || one.Subject == "" {
			t.Errorf("a subject has %d bytes", len(one.Subject))
		}
	}
	if n := len(out.Links[0].Target); n != maxLink {
		t.Errorf("the target of a link has %d bytes", n)
	}
}

func TestObjectsAreReadByOneGitWithinBounds(t *testing.T) {
	g := repo(t, tree{"a": "one\n", "empty": ""})
	o := &objects{git: &git{ctx: t.Context(), dir: g.dir, limited: true}, left: 10}
	defer o.close()
	name := func(of string) string { return strings.TrimSpace(g.must("", "rev-parse", "HEAD:"+of)) }
	for _, want := range []struct {
		of, text string
		most     int64
	}{{"a", "on", 2}, {"empty", "", 9}, {"a", "one\n", 9}} {
		if got, err := o.content(name(want.of), want.most); err != nil || string(got) != want.text {
			t.Errorf("%s is %q, %v", want.of, got, err)
		}
	}
	git := o.cmd.Process.Pid
	if _, err := o.content(strings.Repeat("0", 40), 9); err == nil || !strings.Contains(err.Error(), "missing): --squash makes one commit of its files") {
		t.Errorf("an object that is missing: %v", err)
	}
	if _, err := o.file(treeEntry{object: name("a")}); !errors.As(err, new(*excess)) || o.cmd.Process.Pid != git {
		t.Errorf("beyond the bound: %v", err)
	}
}

// What a repository says about itself besides its objects counts for nothing.
func TestOnlyObjectsOfASandboxAreRead(t *testing.T) {
	t.Parallel()
	base := tree{"a": "1\n"}
	g := repo(t, base)
	copied := g.head()
	in := g.inside()
	in.commit("good", tree{"a": "2\n"})
	objects := strings.Fields(in.must("", "rev-list", "--all", "--objects", "--no-object-names"))
	elsewhere := repo(t, tree{"secret": "s\n"})
	tree{"info/alternates": elsewhere.dir + "/.git/objects\n", "info/commit-graph": "x", "pack/multi-pack-index": "x", "pack/pack-1234567890123456789012345678901234567890.idx": "x"}.write(t, filepath.Join(in.dir, ".git/objects"))
	tree{"hooks/reference-transaction": "x:#!/bin/sh\nexit 1\n", "shallow": "x\n", "info/grafts": "x\n"}.write(t, filepath.Join(in.dir, ".git"))
	h := in.history(copied, base)
	var asked []string
	h.Agree = func(all, _ []Change) error {
		for _, c := range all {
			asked = append(asked, c.Path)
		}
		return nil
	}
	out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", History: h})
	if err != nil || len(out.Commits) != 1 || !slices.Equal(asked, []string{"a"}) {
		t.Errorf("%v: %+v, asked about %v", err, out, asked)
	}
	if files, err := filepath.Glob(filepath.Join(g.dir, ".git/objects/info/*")); err != nil || len(files) > 0 {
		t.Errorf("%v came, %v", files, err)
	}
	// What git reads there is objects.
	var archive bytes.Buffer
	if err := h.Objects(&archive); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := unpackObjects(&archive, dir, filepath.Join(g.dir, "none")); err != nil {
		t.Fatal(err)
	}
	var got []string
	for name := range load(t, dir) {
		got = append(got, strings.ReplaceAll(name, "/", ""))
	}
	slices.Sort(got)
	slices.Sort(objects)
	if !slices.Equal(got, objects) {
		t.Errorf("%v are unpacked, want the objects %v", got, objects)
	}
}

// The workspace has a file again as it was copied in, with what was not committed at home. A commit
// without it does not take it from the branch.
func TestAFileThatIsBackWithWhatWasNotCommittedStays(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n2\n", "b": "b\n"})
	base := tree{"a": "1\nmine\n", "b": "b\n"}
	base.write(t, g.dir)
	copied, in := g.head(), g.inside()
	in.commit("one", tree{"a": "", "b": "changed\n"})
	tree{"a": base["a"]}.write(t, in.dir)
	h := in.history(copied, base)
	h.Copy = h.Base
	_, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), tree{"a": "1\n2\n", "b": "changed\n"})
}

// Git's own text about an unknown author names commands among advice; one sentence says what to do.
func TestACommitNeedsAnAuthor(t *testing.T) {
	g := repo(t, tree{"a": "1\n"}, "user.useConfigOnly=true")
	before := g.must("", "rev-parse", "--all")
	for _, unset := range []string{"user.email", "user.name"} {
		g.must("", "config", "--unset", unset)
		out, err := g.onBranch(tree{}, tree{"b": "2\n"}, BranchOptions{Note: func(Committed) error {
			t.Error("it is noted as brought")
			return nil
		}})
		if !errors.Is(err, errUnknownUser) || out.Commit != "" {
			t.Errorf("without %s: %v, commit %q", unset, err, out.Commit)
		}
	}
	if after := g.must("", "rev-parse", "--all"); after != before {
		t.Errorf("the references are %q, want %q", after, before)
	}
}
