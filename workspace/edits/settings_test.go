package edits

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sign gives the last commit a signature, as gpg writes it.
func (g repository) sign() string {
	g.t.Helper()
	head, message, _ := strings.Cut(g.must("", "cat-file", "commit", "HEAD"), "\n\n")
	signed := head + "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n hostile\n -----END PGP SIGNATURE-----\n\n" + message
	g.onCommit(strings.TrimSpace(g.must(signed, "hash-object", "-t", "commit", "-w", "--stdin")))
	return g.head()
}

// onCommit makes a commit the last one.
func (g repository) onCommit(commit string) {
	g.t.Helper()
	g.must("", "update-ref", "HEAD", commit)
}

// What the user's settings say about the output of git changes neither what a branch gets, nor
// what is asked about it. No program of theirs sees commits of the sandbox.
func TestSettingsOfTheUserForOutputDecideNothing(t *testing.T) {
	play := func(settings string) string {
		t.Setenv("GIT_AUTHOR_DATE", "2001-02-03T04:05:06Z")
		t.Setenv("GIT_COMMITTER_DATE", "2001-02-03T04:05:06Z")
		base := tree{"a": "1\n2\n3\n4\n5\n6\n7\n8\n", "b": "b\n", "gone": "1\n", "z": "z\n"}
		g := repo(t, base)
		settingsOfUser(t, settings)
		copied, in := g.head(), g.inside()
		// The branch has removed one file, and renamed another.
		g.must("", "checkout", "-q", "-b", "fix")
		g.must("", "rm", "-q", "gone")
		g.must("", "mv", "a", "moved")
		g.commit("mine", tree{"b": "mine\n"})
		g.commit("as before", tree{"b": "b\n"})
		g.sign()
		g.must("", "checkout", "-q", "main")
		// The sandbox merges, with a file of its own in the merge, and has a submodule.
		in.must("", "checkout", "-q", "-b", "side")
		in.commit("side", tree{"s": "s\n"})
		in.must("", "checkout", "-q", "main")
		in.commit("main", tree{"moved": "new\n"})
		in.must("", "merge", "-q", "--no-commit", "--no-ff", "side")
		in.commit("merge", tree{".vscode/tasks.json": "t\n"})
		in.sign()
		in.must("", "update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("1", 40)+",sub")
		in.must("", "commit", "-q", "-m", "sub", "--date=2001-02-03T04:05:06Z")
		in.sign()
		work := load(t, in.dir)
		work["gone"] = "changed\n"
		var said strings.Builder
		for _, name := range []string{"fix", "other"} {
			h := in.history(copied, base)
			h.Agree = func(all, _ []Change) error {
				for _, c := range all {
					fmt.Fprintln(&said, "asked about", c.Path)
				}
				return nil
			}
			out, err := Commit(t.Context(), differences(t, base, work), BranchOptions{Folder: g.dir, Branch: name, Message: "Work", Label: "sandbox", History: h})
			fmt.Fprintln(&said, name, err, out.Outside, out.Gitlinks)
			for _, c := range out.Commits {
				fmt.Fprintln(&said, c.Subject)
			}
			for _, o := range out.Outcomes {
				fmt.Fprintln(&said, o.Path, o.Kind, o.Why)
			}
			if out.Commit != "" {
				fmt.Fprint(&said, g.must("", "ls-tree", "-r", name))
			}
		}
		return said.String()
	}
	want := play("")
	for _, must := range []string{"asked about .vscode/tasks.json", "[sub]", "gone"} {
		if !strings.Contains(want, must) {
			t.Fatalf("there is no %q in %s", must, want)
		}
	}
	dir := t.TempDir()
	ran, gpg := filepath.Join(dir, "ran"), filepath.Join(dir, "gpg")
	tree{"gpg": "x:#!/bin/sh\necho $* >>'" + ran + "'\n"}.write(t, dir)
	for _, settings := range []string{
		"[log]\n\tshowSignature = true\n[gpg]\n\tprogram = " + gpg + "\n", "[log]\n\tdiffMerges = off\n", "[log]\n\tfollow = true\n", "[diff]\n\tignoreSubmodules = all\n",
		"[log]\n\tshowRoot = false\n\tdecorate = full\n\tmailmap = true\n\texcludeDecoration = *\n\tgraphColors = red\n\tdate = raw\n[color]\n\tui = always\n[column]\n\tui = always\n",
		"[diff]\n\torderFile = " + filepath.Join(dir, "none") + "\n\tnoprefix = true\n\trenames = copies\n\trelative = true\n\tmnemonicPrefix = true\n[core]\n\tabbrev = 4\n\tquotePath = false\n[format]\n\tpretty = fuller\n[i18n]\n\tlogOutputEncoding = UTF-16\n",
	} {
		if got := play(settings); got != want {
			t.Errorf("with %s it is\n%s\nand not\n%s", settings, got, want)
		}
	}
	if text, err := os.ReadFile(ran); err == nil {
		t.Errorf("a program of the user ran: %s", text)
	}
}

// A program behind a filter may have settings of its own.
func TestAFilterReadsTheSettingsOfTheUser(t *testing.T) {
	g := repo(t, tree{".gitattributes": allCase})
	settingsOfUser(t, "[filter \"case\"]\n\tclean = git config program.says\n\trequired\n[program]\n\tsays = hello\n")
	g.mustBranch(tree{}, tree{"a": "a\n"})
	wantTree(t, "the branch", g.files("fix"), tree{".gitattributes": allCase, "a": "hello\n"})
}
