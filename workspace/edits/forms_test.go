package edits

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	upperCase = "[filter \"case\"]\n\tclean = tr a-z A-Z\n\tsmudge = tr A-Z a-z\n"
	allCase   = "* filter=case\n.git* -filter\n"
)

// plain is a text in whatever form it is.
func plain(text string) string {
	text = content(text)
	if rest, ok := strings.CutPrefix(text, "\xff\xfe"); ok {
		text = strings.ReplaceAll(rest, "\x00", "")
	}
	return strings.ToLower(strings.ReplaceAll(text, "\r\n", "\n"))
}

// A git inside without the user's settings commits files as they are in the workspace.
func TestACommitOfUnconvertedFilesIsNoConflictWithTheBranch(t *testing.T) {
	for _, first := range []string{"the commit", "the file", "an edit after the commit"} {
		t.Run(first+" came first", func(t *testing.T) {
			base := tree{".gitattributes": allCase, "a": "one\ntwo\nthree\n", "b": "b\n"}
			g := repo(t, tree{".gitattributes": allCase, "a": "ONE\nTWO\nTHREE\n", "b": "B\n"})
			settingsOfUser(t, upperCase+"\trequired\n")
			copied := g.head()
			base.write(t, g.dir)
			in := g.inside()
			bring := func(what string, commits bool, want tree) {
				t.Helper()
				now := load(t, in.dir)
				o := BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox"}
				if commits {
					o.History = in.history(copied, base)
				}
				out, err := Commit(t.Context(), differences(t, base, now), o)
				if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
					t.Fatalf("%s: %v: %+v", what, err, out.Outcomes)
				}
				want[".gitattributes"] = allCase
				wantTree(t, what, g.files("fix"), want)
				base = now
			}
			tree{"new": "n\n"}.write(t, in.dir)
			switch first {
			case "the commit":
				in.commit("all", nil)
				bring("a commit", true, tree{"a": "one\ntwo\nthree\n", "b": "b\n", "new": "N\n"})
				tree{"a": "one\n2\nthree\n"}.write(t, in.dir)
				bring("an edit", false, tree{"a": "ONE\n2\nTHREE\n", "b": "b\n", "new": "N\n"})
			case "the file":
				bring("a new file", false, tree{"a": "ONE\nTWO\nTHREE\n", "b": "B\n", "new": "N\n"})
				in.commit("all", nil)
				bring("the same, committed", true, tree{"a": "ONE\nTWO\nTHREE\n", "b": "B\n", "new": "N\n"})
			default:
				in.commit("all", nil)
				tree{"a": "one\n2\nthree\n"}.write(t, in.dir)
				bring("the edit", false, tree{"a": "ONE\n2\nTHREE\n", "b": "B\n", "new": "N\n"})
				bring("the commit", true, tree{"a": "ONE\n2\nTHREE\n", "b": "B\n", "new": "N\n"})
			}
		})
	}
}

// What was not committed when it was copied in, and is since, has nobody taken back: git stores it
// otherwise than the workspace has it.
func TestACommitOfConvertedFilesKeepsWhatWasNotCommitted(t *testing.T) {
	for name, attributes := range map[string]string{"ends of lines": "* text eol=crlf\n", "a filter": allCase} {
		t.Run(name, func(t *testing.T) {
			g := repo(t, tree{".gitattributes": attributes, "a": "one\ntwo\n"})
			settingsOfUser(t, upperCase+"\trequired\n")
			g.config = os.Getenv("HOME") + "/.gitconfig"
			g.must("", "add", "-A", "--renormalize")
			g.must("", "commit", "-q", "--allow-empty", "-m", "second")
			if err := os.Remove(g.dir + "/a"); err != nil {
				t.Fatal(err)
			}
			g.must("", "checkout", "-q", "a")
			text, end := load(t, g.dir)["a"], "\n"
			if strings.Contains(text, "\r") {
				end = "\r\n"
			}
			tree{"a": text + "mine" + end}.write(t, g.dir)
			base, copied, in := load(t, g.dir), g.head(), g.inside()
			in.commit("one", tree{"b": "b" + end})
			h := in.history(copied, base)
			h.Copy = h.Base
			_, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
			if err != nil {
				t.Fatal(err)
			}
			if got := plain(g.files("fix")["a"]); got != "one\ntwo\nmine\n" {
				t.Errorf("the branch has %q", got)
			}
		})
	}
}

// A commit of the sandbox says from where git-lfs gets the contents of large files. Nobody asks
// there to compare them.
func TestLargeFilesOfACommitAreNotFetched(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("git-lfs asks for %s", r.URL)
		http.NotFound(w, r)
	}))
	defer server.Close()
	base := tree{".gitattributes": "*.bin filter=lfs -text\n", "a.bin": "one\n"}
	g := repo(t, base)
	settingsOfUser(t, "[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n\tprocess = git-lfs filter-process\n\trequired = true\n")
	base["a.bin"] = "mine\n"
	tree{"a.bin": base["a.bin"]}.write(t, g.dir)
	copied, in := g.head(), g.inside()
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 5\n"
	config := "[lfs]\n\turl = " + server.URL + "\n"
	in.commit("one", tree{"a.bin": pointer, ".lfsconfig": config})
	tree{"a.bin": base["a.bin"]}.write(t, in.dir)
	h := in.history(copied, base)
	h.Copy = h.Base
	if _, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), tree{".gitattributes": base[".gitattributes"], "a.bin": "one\n", ".lfsconfig": config})
}

// To write a file of a commit out, for a comparison, no filter runs that only attributes of the
// sandbox name, also if an earlier commit has brought them to the branch.
func TestAttributesOfASandboxRunNoFilterToWriteItsObjects(t *testing.T) {
	g := repo(t, tree{"a": "one\n"})
	said := t.TempDir() + "/said"
	settingsOfUser(t, "[filter \"case\"]\n\tclean = tr a-z A-Z\n\tsmudge = tee -a "+said+"\n")
	base := tree{"a": "one\nmine\n"} // not committed
	base.write(t, g.dir)
	copied, in := g.head(), g.inside()
	for _, text := range []string{"of the sandbox\n", "of the sandbox, two\n"} {
		in.commit("one", tree{".gitattributes": "a filter=case\n", "a": text})
		tree{"a": "one\nmine\n"}.write(t, in.dir)
		h := in.history(copied, base)
		h.Copy = in.history(copied, tree{"a": "one\nmine\n"}).Base
		if _, err := Commit(t.Context(), differences(t, base, load(t, in.dir)), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h}); err != nil {
			t.Fatal(err)
		}
		if read, err := os.ReadFile(said); err == nil {
			t.Errorf("the filter has read %q", read)
		}
		if got := g.files("fix")["a"]; got != text {
			t.Errorf("the branch has %q", got)
		}
		base = load(t, in.dir)
		mine := strings.TrimSpace(g.must("", "commit-tree", "-m", "mine", "-p", "fix", "fix^{tree}")) // then it is joined
		g.must("", "update-ref", "refs/heads/fix", mine)
	}
}

// gitsOf counts the processes of git that a call starts.
func gitsOf(t *testing.T, call func()) int {
	t.Helper()
	bin, before := t.TempDir(), os.Getenv("PATH")
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	tree{"git": "x:#!/bin/sh\necho >>'" + bin + "/started'\nexec '" + git + "' \"$@\"\n"}.write(t, bin)
	t.Setenv("PATH", bin+":"+before)
	call()
	t.Setenv("PATH", before)
	started, err := os.ReadFile(filepath.Join(bin, "started"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(started, []byte("\n"))
}

// However many files are compared with what git writes and stores, it does so for all at once.
func TestNoFileOfABranchTakesAGitOfItsOwn(t *testing.T) {
	play := func(t *testing.T, n int, own bool) int {
		settings := upperCase + "\trequired\n"
		stored, mine, users := tree{".gitattributes": allCase, "b": "B\n"}, tree{".gitattributes": allCase, "b": "b\n"}, make(tree)
		for i := range n {
			for _, of := range []string{"copied", "brought"} {
				name := fmt.Sprint(of, i)
				stored[name], mine[name] = "ONE\nTWO\nTHREE\n", "one\ntwo\nthree\n"
			}
			users[fmt.Sprint("brought", i)] = "ONE\nTWO\nTHREE\n"
		}
		g := repo(t, stored)
		settingsOfUser(t, settings)
		g.config = filepath.Join(os.Getenv("HOME"), ".gitconfig")
		copied, home := g.head(), maps.Clone(mine)
		for i := range n { // not committed when it is copied in
			home[fmt.Sprint("copied", i)] = "one\nmine\nthree\n"
		}
		home.write(t, g.dir)
		in := g.inside()
		base := load(t, in.dir)
		if own { // the branch had another version, which the sandbox has
			now := maps.Clone(base)
			for i := range n {
				now[fmt.Sprint("brought", i)] = "one\ntwo\n3\n"
			}
			g.mustBranch(base, now)
			g.must("", "stash", "-q")
			g.must("", "checkout", "-q", "fix")
			g.commit("as before", users)
			g.must("", "checkout", "-q", "main")
			base = now
			now.write(t, in.dir)
		}
		in.commit("all", nil)
		for i := range n {
			tree{fmt.Sprint("brought", i): "one\ntwo\nthree\n"}.write(t, in.dir)
		}
		h := in.history(copied, base)
		h.Copy = in.history(copied, home).Base
		work := load(t, in.dir)
		return gitsOf(t, func() {
			out, err := Commit(t.Context(), differences(t, base, work), BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h})
			if err != nil || (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
				t.Fatalf("%v: %+v", err, out.Outcomes)
			}
		})
	}
	for _, own := range []bool{false, true} {
		if few, many := play(t, 1, own), play(t, 4, own); few != many {
			t.Errorf("with commits of the branch: %t: git is started %d times for one file, and %d times for four", own, few, many)
		}
	}
}

// In a file of settings, a key alone is true.
func TestAFilterThatIsRequiredByAKeyAloneMustNotFail(t *testing.T) {
	g := repo(t, tree{".gitattributes": allCase})
	settingsOfUser(t, "[filter \"case\"]\n\tclean = false\n\trequired\n")
	if out, err := g.onBranch(tree{}, tree{"a": "secret\n"}, BranchOptions{}); err == nil {
		t.Errorf("the branch has %q: %+v", g.files("fix"), out)
	}
}

// A filter that cannot read a file of a commit ends git. The files behind it are compared all the same.
func TestAFileThatAFilterCannotReadHidesNoOther(t *testing.T) {
	g := repo(t, tree{".gitattributes": allCase, "a": "ONE\n", "bad": "BAD\n", "c": "ONE\n", "worse": "BAD\n", "z": "ONE\n"})
	settingsOfUser(t, "[filter \"case\"]\n\tclean = tr a-z A-Z\n\tsmudge = \"tr A-Z a-z | { read x && test $x != bad && echo $x && cat; }\"\n\trequired\n")
	g.config = filepath.Join(os.Getenv("HOME"), ".gitconfig")
	base := tree{".gitattributes": allCase, "a": "one\nmine\n", "bad": "bad\nmine\n", "c": "one\nmine\n", "worse": "bad\nmine\n", "z": "one\nmine\n"}
	base.write(t, g.dir) // not committed
	copied, in := g.head(), g.inside()
	in.config = filepath.Join(t.TempDir(), "config") // git would store the files in another way here
	if err := os.WriteFile(in.config, []byte("[filter \"case\"]\n\tclean = tr a-m A-M\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in.commit("all", nil)
	h := in.history(copied, base)
	h.Copy = h.Base
	if _, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), tree{".gitattributes": allCase, "a": "onE\nMInE\n", "bad": "BAD\n", "c": "onE\nMInE\n", "worse": "BAD\n", "z": "onE\nMInE\n"})
}

// The sandbox has committed attributes, and has its files as they were copied in. Git writes them
// by the attributes of the branch.
func TestAttributesThatASandboxTookBackChangeNoOtherFile(t *testing.T) {
	t.Parallel()
	g := repo(t, tree{".gitattributes": "a text eol=crlf\n", "a": "one\r\n", "b": "b\n"})
	base := tree{".gitattributes": "a text eol=crlf\n*.y text\n", "a": "one\r\nmine\r\n", "b": "b\n"}
	base.write(t, g.dir) // not committed
	copied, in := g.head(), g.inside()
	g.must("", "stash", "-q")
	g.must("", "checkout", "-q", "-b", "fix")
	g.commit("mine", tree{"b": "changed\n"})
	g.must("", "checkout", "-q", "main")
	in.commit("all", tree{".gitattributes": "*.z text\n", "a": "one\nmine\n"})
	base.write(t, in.dir)
	h := in.history(copied, base)
	h.Copy = h.Base
	if _, err := Commit(t.Context(), nil, BranchOptions{Folder: g.dir, Branch: "fix", Message: "Work", Label: "sandbox", History: h}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), tree{".gitattributes": "a text eol=crlf\n", "a": "one\nmine\n", "b": "changed\n"})
}

// What git stores of a few files depends on them and on attributes, wherever these are, and git
// lists no other file of a large repository.
func TestGitListsOnlyWhatChangedToStoreIt(t *testing.T) {
	stored := tree{
		".gitattributes": "*.up filter=case\n*.t text\n", "d/.gitattributes": "*.t -text\n",
		"d/sub/deep/.gitattributes": "*.up -filter\n", "other/.gitattributes": "* -filter\n", "d/sub/auto": "1\r\n", "d/sub/a.t": "1\r\n",
		"d/sub/a.up": "ONE\n", "d/sub/deep/a.up": "one\n",
	}
	for n := range 20 {
		stored[fmt.Sprint("d/sub/many/", n)], stored[fmt.Sprint("other/", n)] = "m\n", "m\n"
	}
	g := repo(t, stored)
	settingsOfUser(t, upperCase+"\trequired\n")
	stored["d/sub/.gitattributes"] = "auto text=auto\n" // it has CRLF in git already
	g.commit("attributes", tree{"d/sub/.gitattributes": "auto text=auto\n"})
	base, theirs := tree{"auto": "1\r\n", "a.t": "1\r\n", "a.up": "one\n", "deep/a.up": "one\n"}, make(tree)
	want := maps.Clone(stored)
	for name, text := range base {
		theirs[name] = text + "two\r\n"
	}
	theirs["new.up"], theirs["new.t"], theirs["deep/new.up"] = "new\n", "1\r\n", "new\n"
	want["d/sub/auto"], want["d/sub/a.t"], want["d/sub/a.up"], want["d/sub/deep/a.up"] = "1\r\ntwo\r\n", "1\r\ntwo\r\n", "ONE\nTWO\r\n", "one\ntwo\r\n"
	want["d/sub/new.up"], want["d/sub/new.t"], want["d/sub/deep/new.up"] = "NEW\n", "1\r\n", "new\n"
	o := BranchOptions{Folder: filepath.Join(g.dir, "d/sub"), Branch: "fix", Message: "Work", Label: "sandbox"}
	work := changes(t, base, theirs)
	if _, err := Commit(t.Context(), work, o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the branch", g.files("fix"), want)
	// The indexes of a conversion.
	o.Branch = "new"
	b, err := openBranch(t.Context(), o, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer b.objects.close()
	if _, err := b.convert(work); err != nil {
		t.Fatal(err)
	}
	// Of before, it lists only what the branch does not have as it is: a.up.
	for side, n := range map[string]int{"before": 5 + 1, "after": 5 + len(theirs)} {
		index := *b.own
		index.env = append(index.env, "GIT_INDEX_FILE="+filepath.Join(b.own.dir, side+".index"))
		out, err := index.run(nil, "ls-files")
		if lines := bytes.Count(out, []byte("\n")); err != nil || lines != n {
			t.Errorf("%s lists %d paths, not %d (%v)", side, lines, n, err)
		}
	}
}
