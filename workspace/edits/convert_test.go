package edits

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Attributes that come to a branch say how git stores the files that come with them, but choose no
// filter.
func TestFilesAreStoredByTheAttributesThatComeWithThem(t *testing.T) {
	for _, c := range []struct{ what, before, after, mine, want string }{
		{"no text any more", "*.txt text\n", "*.txt -text\n", "a\r\nc\r\n", "a\r\nc\r\n"},
		{"text", "", "*.txt text\n", "a\r\nc\r\n", "a\nc\n"},
		{"removed", "*.txt text\n", "", "a\r\nc\r\n", "a\r\nc\r\n"},
		{"an encoding", "", "*.txt working-tree-encoding=UTF-16LE-BOM\n", utf16("a\nc\n"), "a\nc\n"},
		{"the same filter", "*.txt filter=case text\n", "*.txt filter=case -text\n", "a\r\nc\r\n", "A\r\nC\r\n"},
		{"a filter", "*.txt text\n", "*.txt filter=case -text\n", "a\r\nc\r\n", "a\nc\n"},
		{"a filter, with one of the attributes themselves", ".gitattributes filter=case\n", ".gitattributes filter=case\n*.txt filter=case\n", "a\nc\n", "a\nc\n"},
		{"an encoding that the files do not have", "*.txt text\n", "*.txt working-tree-encoding=UTF-16\n", "a\r\nc\r\n", "a\nc\n"},
		{"no filter any more", "*.txt filter=case\n", "*.txt -filter\n", "a\nc\n", "A\nC\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			base, theirs, stored := tree{"w.txt": "a\nb\n"}, tree{"w.txt": c.mine, "d/new.txt": c.mine}, tree{"w.txt": "a\nb\n"}
			want := tree{"w.txt": c.want, "d/new.txt": c.want}
			if c.before != "" {
				base[".gitattributes"], stored[".gitattributes"] = c.before, c.before
			}
			if c.after != "" {
				theirs[".gitattributes"], want[".gitattributes"] = c.after, c.after
			}
			g := repo(t, stored)
			settingsOfUser(t, upperCase)
			g.mustBranch(base, theirs)
			wantTree(t, "the branch", g.files("fix"), want)
			// With a version on the branch that the sandbox does not have, those are merged, or refused.
			if c.before != "" && c.after != "" {
				g.onNewBranch("main", ".gitattributes", "'*.txt eol=lf'")
				if out, err := g.onBranch(base, theirs, BranchOptions{}); err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() == 0 {
					t.Errorf("%v: %+v", err, out.Outcomes)
				}
			}
		})
	}
}

// A file that git cannot store by new attributes keeps no other from being stored by them.
func TestFilesThatNewAttributesDoNotFitAreStoredByTheOldOnes(t *testing.T) {
	t.Parallel()
	base := tree{"w.txt": "a\nb\n"}
	theirs := tree{".gitattributes": "*.txt text\nw.txt -text working-tree-encoding=UTF-16\n", "w.txt": "a\r\nc\r\n", "new.txt": "a\r\nc\r\n"}
	g := repo(t, base)
	g.mustBranch(base, theirs)
	want := maps.Clone(theirs)
	want["new.txt"] = "a\nc\n"
	wantTree(t, "the branch", g.files("fix"), want)
}

// Files that do not have the encoding that is committed for them are left out by name. Git can add
// none of them. What was renamed to one stays where it was.
func TestFilesWithoutTheirEncodingKeepNoOtherOut(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{false, true} {
		stored := tree{"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n", "d.md": "d\n", "old.txt": "moved\n"}
		g := repo(t, stored)
		tree{".gitattributes": "*.txt working-tree-encoding=UTF-16\n"}.write(t, g.dir)
		g.must("", "add", ".gitattributes")
		g.must("", "commit", "-q", "-m", "encoding")
		base := tree{".gitattributes": "*.txt working-tree-encoding=UTF-16\n", "a.txt": utf16("a\n"), "b.txt": "b\n", "c.txt": utf16("c\n"), "d.md": "d\n", "old.txt": "moved\n"}
		copied, in := g.head(), g.inside()
		if commits {
			tree{"d.md": "1\n"}.write(t, in.dir)
			in.must("", "commit", "-q", "-m", "one", "d.md")
		}
		theirs := maps.Clone(base)
		theirs["a.txt"], theirs["b.txt"], theirs["c.txt"], theirs["d.md"], theirs["new.txt"] = utf16("2\n"), "2\n", utf16("3\n"), "4\n", "5\n"
		delete(theirs, "old.txt")
		theirs["name.txt"] = "moved\n"
		o := BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox"}
		if commits {
			o.History = in.history(copied, base)
			o.History.Copy = o.History.Base
		}
		out, err := Commit(t.Context(), changes(t, base, theirs), o)
		if want := []string{"b.txt", "name.txt", "new.txt", "old.txt"}; err != nil || !slices.Equal(out.Unfit, want) || !slices.Equal(out.Left(), want) {
			t.Fatalf("%v: %q are left out of %+v", err, out.Unfit, out)
		}
		wantTree(t, "the branch", g.files("fix"), tree{".gitattributes": base[".gitattributes"], "a.txt": "2\n", "b.txt": "b\n", "c.txt": "3\n", "d.md": "4\n", "old.txt": "moved\n"})
	}
}

// The old name of one is not left out if a commit has removed it, nor are both if a commit has renamed the
// file as it is.
func TestAFileThatACommitRenamesToOneWithoutItsEncodingComes(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		for script, unfit := range map[string][]string{
			"git rm -q old.txt; git commit -q -m one; echo moved >name.u": {"name.u"},
			"git mv old.txt name.u; git commit -q -m one":                 nil,
		} {
			base := tree{".gitattributes": "*.u working-tree-encoding=UTF-16\n", "old.txt": "moved\n"}
			g := repo(t, base)
			copied, in := g.head(), g.inside()
			want := tree{".gitattributes": base[".gitattributes"]}
			if own { // the branch has commits of its own
				g.onNewBranch(copied, "own", "o")
				want["own"] = "o\n"
			}
			in.shell(script)
			if unfit == nil {
				want["name.u"] = "moved\n"
			}
			o := BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: in.history(copied, base)}
			o.History.Copy = o.History.Base
			out, err := Commit(t.Context(), changes(t, base, load(t, in.dir)), o)
			if err != nil || !slices.Equal(out.Unfit, unfit) {
				t.Fatalf("%s, %t: %v: %q are left out", script, own, err, out.Unfit)
			}
			wantTree(t, script, g.files("fix"), want)
		}
	}
}

// Each file without its encoding needs a process of git, and so does each encoding: of too many, git's
// error is told.
func TestVeryManyFilesWithoutTheirEncodingAreAnError(t *testing.T) {
	t.Parallel()
	for _, alike := range []bool{true, false} {
		theirs := make(tree)
		attributes := "*.txt working-tree-encoding=UTF-16\n"
		for i := range maxApart + 1 {
			name := fmt.Sprintf("%03d.txt", i)
			theirs[name] = "not UTF-16\n"
			if !alike {
				attributes += fmt.Sprintf("%s working-tree-encoding=none-%d\n", name, i)
			}
		}
		g := repo(t, tree{".gitattributes": attributes})
		if out, err := g.onBranch(tree{}, theirs, BranchOptions{}); err == nil || !strings.Contains(err.Error(), "000.txt") {
			t.Errorf("%t: %v: %+v", alike, err, out.Unfit)
		}
	}
}

// An encoding that git does not know is told from files that do not have theirs, of which it may be
// any number.
func TestAnEncodingThatGitDoesNotKnowIsNamed(t *testing.T) {
	t.Parallel()
	theirs := tree{"a.u": utf16("a\n"), "bad.u": "bad\n", "l.l": "\xe9\n", "s.s": "\xff\n", "set": "a\n", "d.md": "d\n"}
	var want []string
	for i := range maxApart + 1 {
		want = append(want, fmt.Sprintf("%03d.none", i))
		theirs[want[i]] = "n\n"
	}
	g := repo(t, tree{".gitattributes": "*.u working-tree-encoding=UTF-16\n*.l working-tree-encoding=latin1\n*.s working-tree-encoding=SHIFT-JIS\n*.none working-tree-encoding=none\nset working-tree-encoding\n"})
	out, err := g.onBranch(tree{}, theirs, BranchOptions{})
	if want = append(want, "bad.u", "s.s", "set"); err != nil || !slices.Equal(out.Unfit, want) || !slices.Equal(out.Encodings, []string{"none", "set"}) {
		t.Fatalf("%v: %q, %q", err, out.Unfit, out.Encodings)
	}
	got := g.files("fix")
	delete(got, ".gitattributes")
	wantTree(t, "the branch", got, tree{"a.u": "a\n", "l.l": "é\n", "d.md": "d\n"})
}

// A git that is killed says nothing about files and encodings.
func TestAKilledGitLeavesNoFileOut(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	for _, killed := range []string{"update-index --verbose", "hash-object -w --stdin --path"} {
		g := repo(t, tree{".gitattributes": "*.u working-tree-encoding=UTF-16\n"})
		bin, before := t.TempDir(), os.Getenv("PATH")
		tree{"git": "x:#!/bin/sh\ncase \"$*\" in *'" + killed + "'*) kill -9 $$ ;; esac\nexec '" + git + "' \"$@\"\n"}.write(t, bin)
		t.Setenv("PATH", bin+":"+before)
		out, err := g.onBranch(tree{}, tree{"a.u": utf16("a\n"), "bad.u": "bad\n"}, BranchOptions{})
		t.Setenv("PATH", before)
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("%s: %v: %q are left out, and the encodings %q", killed, err, out.Unfit, out.Encodings)
		}
	}
}

// A filter without a command is none that fails.
func TestAFilterWithoutACommandBesideAnEncodingKeepsNoOtherOut(t *testing.T) {
	for _, filter := range []string{" -filter", " filter", " filter=unknown", " filter=f"} {
		g := repo(t, tree{".gitattributes": "*.u working-tree-encoding=UTF-16" + filter + "\n"})
		settingsOfUser(t, "[filter \"f\"]\n\tsmudge = cat\n")
		out, err := g.onBranch(tree{}, tree{"a.u": "bad\n", "b": "b\n"}, BranchOptions{})
		if err != nil || !slices.Equal(out.Unfit, []string{"a.u"}) || g.files("fix")["b"] != "b\n" {
			t.Errorf("%q: %v: %q are left out of %q", filter, err, out.Unfit, g.files("fix"))
		}
	}
}

// A filter that fails is an error, also of a file that has an encoding.
func TestAFilterThatFailsBesideAnEncodingIsAnError(t *testing.T) {
	g := repo(t, tree{".gitattributes": "*.txt working-tree-encoding=UTF-16 filter=lost\n"})
	settingsOfUser(t, "[filter \"lost\"]\n\tclean = false\n\trequired = true\n")
	if out, err := g.onBranch(tree{}, tree{"a.txt": utf16("a\n"), "b.txt": "b\n"}, BranchOptions{}); err == nil {
		t.Errorf("%q do not have their encoding", out.Unfit)
	}
}

// The same attributes may have been committed otherwise before.
func TestAttributesCountThatAreChangedAfterACommitOfThem(t *testing.T) {
	t.Parallel()
	base := tree{".gitattributes": "*.md text\n", "w.txt": "a\r\n"}
	g := repo(t, base)
	copied, in := g.head(), g.inside()
	in.commit("one", tree{".gitattributes": "*.txt text\n", "w.txt": "a\n"})
	theirs := tree{".gitattributes": "*.txt -text\n", "w.txt": "a\r\nc\r\n", "new.txt": "a\r\nc\r\n"}
	theirs.write(t, in.dir)
	changes, o := g.fromInside(in, copied, base, "", false)
	if out, err := Commit(t.Context(), changes, o); err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		t.Fatalf("%v: %+v", err, out.Outcomes)
	}
	wantTree(t, "the branch", g.files("fix"), theirs)
}
