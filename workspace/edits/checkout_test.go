package edits

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Of a file behind a filter that only commits of the sandbox name, a branch that is not the folder
// keeps what came to branches only, whatever the sandbox has committed of it meanwhile.
func TestWhatWentToBranchesOnlyStaysBehindANewFilter(t *testing.T) {
	first := tree{"d.txt": "d\n", "b": "b\n"}
	g := repo(t, first)
	settingsOfUser(t, upperCase)
	copied, in := g.head(), g.inside()
	work := tree{".gitattributes": "*.txt filter=case\n", "d.txt": "two\n", "b": "b\n"}
	g.mustBranch(first, tree{".gitattributes": work[".gitattributes"], "d.txt": "d\n", "b": "b\n"})
	g.mustBranch(tree{"d.txt": "d\n", "b": "b\n", ".gitattributes": work[".gitattributes"]}, work)
	if got := g.files("fix")["d.txt"]; got != "TWO\n" {
		t.Fatalf("the branch has %q", got)
	}
	in.commit("one", tree{".gitattributes": work[".gitattributes"], "d.txt": "three\n"})
	work.write(t, in.dir)
	h := in.history(copied, work)
	h.Copy = in.history(copied, first).Base
	h.Home = func() (map[string]*File, error) { return h.Copy, nil }
	out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		t.Fatalf("%v: %+v", err, out.Outcomes)
	}
	if got := g.files("fix")["d.txt"]; got != "TWO\n" {
		t.Errorf("the branch has %q", got)
	}
}

// Attributes of the workspace that no commit has choose no filter for what the branch has.
func TestAttributesThatAreNotCommittedDoNotSayWhatABranchHas(t *testing.T) {
	first := tree{".gitattributes": "# 0\n", "a": "a\n", "d.txt": "d\n"}
	g := repo(t, first)
	settingsOfUser(t, upperCase)
	copied, in := g.head(), g.inside()
	g.mustBranch(first, tree{".gitattributes": "# 0\n", "a": "a\n", "d.txt": "THREE\n"}) // the user's
	in.commit("one", tree{".gitattributes": "# 1\n", "d.txt": "two\n"})
	work := tree{"a": "a\n", ".gitattributes": "*.txt filter=case\n", "d.txt": "three\n"}
	work.write(t, in.dir)
	h := in.history(copied, work)
	h.Copy = in.history(copied, first).Base
	h.Home = func() (map[string]*File, error) { return h.Copy, nil }
	out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() == 0 {
		t.Errorf("%v: %+v", err, out)
	}
}

// With --squash, no filter runs to see what a branch has that only a commit of the sandbox names.
func TestNoFilterOfTheSandboxRunsForWhatGitHasStoppedTracking(t *testing.T) {
	g := repo(t, tree{"f": "1\n", "a": "a\n"})
	ran := filepath.Join(t.TempDir(), "ran")
	settingsOfUser(t, "[filter \"case\"]\n\tclean = tr a-z A-Z\n\tsmudge = echo ran >>"+ran+"; tr A-Z a-z\n")
	copied, in := g.head(), g.inside()
	base := load(t, in.dir)
	in.commit("one", tree{".gitattributes": "f filter=case\n", "f": "two\n"})
	changes, o := g.fromInside(in, copied, base, "", false)
	if _, err := Commit(t.Context(), changes, o); err != nil {
		t.Fatal(err)
	}
	now := load(t, in.dir)
	in.shell("git rm -q --cached f; git commit -q -m two")
	if err := os.RemoveAll(ran); err != nil {
		t.Fatal(err)
	}
	changes, o = g.fromInside(in, copied, now, "", true)
	out, err := Commit(t.Context(), changes, o)
	if err != nil || len(out.Outcomes) != 1 || out.Outcomes[0].Kind != Refused || !strings.Contains(out.Outcomes[0].Why, "does not track it") {
		t.Errorf("%v: %+v", err, out.Outcomes)
	}
	if text, err := os.ReadFile(ran); err == nil {
		t.Errorf("the filter %s", text)
	}
}

// A commit that only changes how git stores files leaves them in the workspace as they were, and
// takes nothing back.
func TestACommitThatStoresFilesAnewStays(t *testing.T) {
	t.Parallel()
	for _, others := range []bool{false, true} {
		base := tree{"a": "1\r\n2\r\n", "b": "1\r\n"}
		g := repo(t, base)
		copied, in := g.head(), g.inside()
		if others { // the branch has commits of its own
			g.must("", "checkout", "-q", "-b", "fix")
			g.commit("mine", tree{"mine": "m\n"})
			g.must("", "checkout", "-q", "main")
		}
		tree{".gitattributes": "* text\n"}.write(t, in.dir)
		in.must("", "add", ".gitattributes")
		in.must("", "add", "--renormalize", ".")
		in.must("", "commit", "-q", "-m", "inside")
		work := load(t, in.dir)
		h := in.history(copied, base)
		h.Copy = h.Base
		out, err := Commit(t.Context(), differences(t, base, work), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
		if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
			t.Fatalf("%v: %+v", err, out.Outcomes)
		}
		want := tree{".gitattributes": "* text\n", "a": "1\n2\n", "b": "1\n"}
		if others {
			want["mine"] = "m\n"
		} else if out.Commit != h.Tip {
			t.Errorf("a commit more than the sandbox's is on the branch")
		}
		wantTree(t, "the branch", g.files("fix"), want)
	}
}

// The same is true of files that were not committed when they were copied in, whatever ends their
// lines have, by attributes or by settings of the sandbox only.
func TestACommitThatStoresFilesAnewKeepsWhatWasNotCommitted(t *testing.T) {
	for _, others := range []bool{false, true} {
		for _, setting := range []string{"attributes", "of the folder", "inside"} {
			attributes, settings := "# none\n", []string(nil)
			switch setting {
			case "attributes":
				attributes = "* text\n"
			case "of the folder":
				settings = []string{"core.autocrlf=input"}
			}
			g := repo(t, tree{"a": "1\n2\n", "b": "1\n", "mixed": "1\r\n2\n"})
			settingsOfUser(t, "")
			g.config = os.Getenv("HOME") + "/.gitconfig"
			g.set(settings...)
			base := tree{"a": "1\r\n2\r\nmine\r\n", "b": "1\n", "mixed": "1\r\n2\nmine\r\nmore\n"}
			base.write(t, g.dir)
			copied, in := g.head(), g.inside()
			if others { // the branch has commits of its own
				g.onNewBranch(copied, "own", "o")
			}
			if setting == "inside" {
				in.set("core.autocrlf=input")
			}
			in.commit("inside", tree{".gitattributes": attributes})
			in.must("", "add", "--renormalize", ".")
			in.must("", "commit", "-q", "--allow-empty", "-m", "inside")
			h := in.history(copied, base)
			h.Copy = h.Base
			if others { // the folder has another version by now
				tree{"mixed": "other\n"}.write(t, g.dir)
			} else { // the sandbox does not run
				h.Read = func(string, int64) ([]byte, error) { return nil, nil }
			}
			out, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Fatalf("%s: %v: %+v", setting, err, out.Outcomes)
			}
			want := tree{".gitattributes": attributes, "a": "1\n2\nmine\n", "b": "1\n", "mixed": "1\n2\nmine\nmore\n"}
			if others {
				want["own"] = "o\n"
			} else if out.Commit != h.Tip {
				t.Errorf("%s: a commit more than the sandbox's is on the branch", setting)
			}
			wantTree(t, setting+": the branch", g.files("fix"), want)
		}
	}
}

// If nobody has the version that was not committed any more, it is not known whether the commit has it.
func TestWhatWasNotCommittedAndCannotBeReadIsAnError(t *testing.T) {
	g := repo(t, tree{"a": "1\n"})
	base := tree{"a": "1\r\nmine\n"}
	base.write(t, g.dir)
	copied, in := g.head(), g.inside()
	in.commit("inside", tree{"a": "1\nmine\n"})
	tree{"a": "other\n"}.write(t, g.dir)
	h := in.history(copied, base)
	h.Copy, h.Read = h.Base, func(string, int64) ([]byte, error) { return nil, nil }
	out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if !errors.As(err, new(*HistoryError)) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("%v: %+v", err, out)
	}
}

// What the folder still has may have any size.
func TestALargeFileThatTheFolderHasIsComparedAsGitStoresIt(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n"})
	base := tree{"a": strings.Repeat("0123456789abcd\r\n", maxPlaced/16) + "mine\n"}
	base.write(t, g.dir)
	copied, in := g.head(), g.inside()
	in.commit("inside", tree{".gitattributes": "* text\n"})
	h := in.history(copied, base)
	h.Copy = h.Base
	out, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil || out.Commit != h.Tip {
		t.Errorf("%v: the branch has %s, not the sandbox's %s", err, out.Commit, h.Tip)
	}
}

// Nor is it known if git cannot store that version here as the commit has it: the filter has no command
// here, or fails, or there are too many to try each.
func TestWhatWasNotCommittedAndCannotBeStoredIsAnError(t *testing.T) {
	many, inside := strings.Builder{}, []string{"-c", "filter.f.clean=tr a-z A-Z"}
	for i := range maxApart + 1 {
		fmt.Fprintf(&many, "f%d text filter=f%d\n", i, i)
	}
	for name, c := range map[string]struct{ attributes, settings string }{
		"no command":                {"", "\tsmudge = cat\n"},
		"not known":                 {"", ""},
		"a command that fails":      {"", "\tclean = false\n"},
		"one that must not fail":    {"", "\tclean = false\n\trequired\n"},
		"beside too many of others": {many.String(), "\tclean = false\n\trequired\n"},
	} {
		for _, others := range []bool{false, true} {
			attributes := "*.bin filter=f\n" + c.attributes
			files, base := tree{".gitattributes": attributes, "a.bin": "old\n"}, tree{".gitattributes": attributes, "a.bin": "mine\n"}
			if c.attributes != "" {
				for i := range maxApart + 1 {
					files[fmt.Sprint("f", i)], base[fmt.Sprint("f", i)] = "1\n", "1\r\nmine\n"
				}
			}
			g := repo(t, files)
			base.write(t, g.dir)
			settingsOfUser(t, "[filter \"f\"]\n"+c.settings)
			copied, in := g.head(), g.inside()
			if others { // the branch has commits of its own
				g.onNewBranch(copied, "own", "o")
			}
			in.must("", append(inside, "commit", "-q", "-a", "-m", "inside")...)
			h := in.history(copied, base)
			h.Copy = h.Base
			out, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
			if !errors.As(err, new(*HistoryError)) || !strings.Contains(err.Error(), "a.bin") {
				t.Errorf("%s, %t: %v: %+v: the branch has %q", name, others, err, out.Outcomes, g.files("fix")["a.bin"])
			}
		}
	}
}

// What the sandbox has taken back to what was not committed is no other way to store it.
func TestWhatWasNotCommittedAndIsTakenBackIsNotStoredAnew(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{"a": "1\n"})
	base := tree{"a": "1\r\nmine\n"}
	base.write(t, g.dir)
	copied, in := g.head(), g.inside()
	in.commit("inside", tree{"a": "1\nmine\ntheirs\n"})
	base.write(t, in.dir)
	h := in.history(copied, base)
	h.Copy = h.Base
	if _, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), tree{"a": "1\n"})
}

// A filter that fails, as one that this machine has not, says nothing about other files.
func TestAFilterThatFailsTakesNoOtherFileBack(t *testing.T) {
	base := tree{"a": "1\r\n2\r\n", "b": "1\r\n", "c.bin": "binary\n", "d.txt": "d\n"}
	g := repo(t, base)
	copied, in := g.head(), g.inside()
	settingsOfUser(t, "[filter \"lost\"]\n\tclean = /nonexistent\n\trequired = true\n[filter \"case\"]\n\tclean = tr a-z A-Z\n\trequired = true\n")
	tree{".gitattributes": "* text\n*.bin -text filter=lost\n*.txt filter=case\n"}.write(t, in.dir)
	in.must("", "add", ".gitattributes")
	in.must("", "-c", "filter.lost.clean=sed s/^/P/", "-c", "filter.case.clean=tr a-z A-Z", "add", "--renormalize", ".")
	in.must("", "commit", "-q", "-m", "inside")
	h := in.history(copied, base)
	h.Copy = h.Base
	out, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
	if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		t.Fatalf("%v: %+v", err, out.Outcomes)
	}
	got := g.files("fix")
	delete(got, ".gitattributes")
	wantTree(t, "the branch", got, tree{"a": "1\n2\n", "b": "1\n", "c.bin": "binary\n", "d.txt": "D\n"})
}

// Beyond a number of filters and encodings, or of files without theirs, agbox does not try each: then it
// takes nothing back either.
func TestFilesOfVeryManyEncodingsAreNotTakenBack(t *testing.T) {
	t.Parallel()
	for _, unfit := range []bool{false, true} {
		base, attributes := tree{"a": "1\r\n", "0bad": "x\r\n"}, "* text\n0bad working-tree-encoding=none\n"
		if unfit {
			attributes = "* text\n[0-9]* working-tree-encoding=UTF-16\n"
		}
		for i := range maxApart + 1 {
			base[fmt.Sprint(i)] = "1\r\n"
			if !unfit {
				attributes += fmt.Sprintf("%d filter=f%d\n", i, i)
			}
		}
		if unfit {
			base["99utf"] = utf16("1\r\n")
		}
		g := repo(t, base)
		copied, in := g.head(), g.inside()
		in.commit("inside", tree{".gitattributes": "* text\n"})
		in.must("", "add", "--renormalize", ".")
		if unfit {
			in.must("", "update-index", "--cacheinfo", "100644,"+strings.TrimSpace(in.must("1\n", "hash-object", "-w", "--stdin"))+",99utf")
		}
		in.must("", "commit", "-q", "--allow-empty", "-m", "inside")
		tree{".gitattributes": attributes}.write(t, in.dir)
		in.must("", "commit", "-q", "-m", "attributes", ".gitattributes")
		h := in.history(copied, base)
		h.Copy = h.Base
		out, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
		if !errors.As(err, new(*HistoryError)) {
			t.Errorf("%t: %v: %+v: the branch has %q", unfit, err, len(out.Outcomes), g.files("fix"))
		}
	}
}
