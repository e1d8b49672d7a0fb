package edits

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// made makes a repository whose branch w has two commits of work: one changes a and d, the next one b. on
// commits as the user, at an hour. fails is for what stops with a conflict.
const made = `
at() { GIT_COMMITTER_DATE="2026-01-01T$1:00:00Z"; GIT_AUTHOR_DATE=$GIT_COMMITTER_DATE; export GIT_COMMITTER_DATE GIT_AUTHOR_DATE; }
on() { at $1; shift; git commit -qam "$*"; }
fails() { ! "$@" >/dev/null 2>&1; }
`

const work = `
git checkout -q -b w
echo work >a; echo work >d; on 10 one; git tag w1
echo work >b; on 10 two; git tag w2
git checkout -q main
`

func TestWhatTheFolderHasOfABranch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// early is what happens before the work, and then what happens after it.
		early, then string
		has, held   string
	}{
		"nothing":               {then: ``},
		"it is merged":          {then: `git merge -q w`, has: "w1 w2"},
		"a part of it is":       {then: `git merge -q w1`, has: "w1"},
		"it is merged as one":   {then: `git merge -q --squash w; on 11 as one; git branch -q -D w`, has: "w1 w2"},
		"it was, and goes on":   {then: `git merge -q --squash w; on 11 as one; echo user >a; echo user >b; echo user >d; on 12 user`, has: "w1 w2"},
		"it was, and is undone": {then: `git merge -q --squash w; on 11 as one; git revert --no-edit HEAD >/dev/null`, has: "w1 w2"},
		"a part is merged as one, and the rest picked": {
			then: `git merge -q --squash w; on 11 as one; echo user >a; on 12 user; git checkout -q w; echo work >c; on 13 three; git tag w3; git checkout -q main; git cherry-pick w3 >/dev/null`,
			has:  "w1 w2 w3",
		},
		"another branch has it below":                  {then: `git merge -q --squash w; on 11 as one; git checkout -q -b v; echo v >c; on 12 v; git tag w3; git checkout -q main; echo user >a; on 13 user`, has: "w1 w2"},
		"it has the merge below":                       {then: `git merge -q --squash w; on 11 as one; git checkout -q w; git merge -q main; echo x >c; on 12 x; git tag w3; git checkout -q main; echo user >a; on 13 user`, has: "w1 w2"},
		"it is undone, and made again":                 {then: `git merge -q --squash w; on 11 as one; git revert --no-edit HEAD >/dev/null; git checkout -q w; echo 1 >a; echo 1 >b; echo 1 >d; on 12 undone; echo work >a; on 13 again; git tag w4; git checkout -q main`, has: "w1 w2"},
		"the user makes and undoes the rest before it": {then: `git merge -q --squash w; on 11 as one; echo work >c; on 12 user; echo 1 >c; on 12 back; git checkout -q w; echo work >c; on 13 three; git tag w3; git checkout -q main`, has: "w1 w2"},
		"a part of it has an old date":                 {then: `git checkout -q w; echo 1 >a; on 07 old; echo work >a; on 13 new; git tag w3; git checkout -q main; echo work >a; echo work >b; echo work >d; on 12 user; git revert --no-edit HEAD >/dev/null`, has: "w1 w2"},
		"a thousand commits follow": {then: `git merge -q --squash w; on 11 as one; echo user >a; on 12 user; { printf 'commit refs/heads/main\ncommitter a <a@b> -1 +0000\ndata 1\nx\nfrom refs/heads/main^0\n'; yes 'commit refs/heads/main
committer a <a@b> 1767270000 +0000
data 1
x' | head -4000; } | git fast-import --quiet`, has: "w1 w2"},
		"the user rebases what was there before": {
			early: `git tag b0; echo work >a; echo work >d; echo work >b; on 08 same; git revert --no-edit HEAD >/dev/null`,
			then:  `git checkout -q -b up b0; echo up >c; on 11 up; git checkout -q main; git rebase -q up`,
		},
		"so does one who has a part of it": {
			early: `git tag b0; echo work >b; on 08 same; git revert --no-edit HEAD >/dev/null`,
			then:  `git checkout -q -b up b0; git cherry-pick w1 >/dev/null; git checkout -q main; git rebase -q up`, has: "w1",
		},
		"a merge of the work makes it again": {
			then: `git merge -q --squash w; on 11 as one; git revert --no-edit HEAD >/dev/null; git checkout -q w; echo 1 >a; echo 1 >b; echo 1 >d; on 12 undone; git checkout -q -b y w2; echo y >c; on 12 y; at 13; git merge -q -s ours w -m again; git tag w4; git checkout -q main; echo y >c; on 14 c`, has: "w1 w2",
		},
		"a merge of the work is changed": {
			then: `git merge -q --squash w; on 11 as one; git revert --no-edit HEAD >/dev/null; git checkout -q w; echo 1 >a; on 12 undone; git checkout -q -b y w; echo y >c; on 12 y; git checkout -q w; echo z >>c; git reset -q --hard; git merge -q --no-ff --no-commit y; echo work >a; on 13 merged; git tag w4; git checkout -q main; echo y >c; on 14 c`, has: "w1 w2",
		},
		"both sides have merged the other": {
			then: `git checkout -q -b u main; echo work >c; on 08 user; echo 1 >c; on 08 back; git checkout -q main; git merge -q --ff-only u; git merge -q --no-edit w2; git checkout -q w; git merge -q --no-ff --no-commit u; echo work >c; on 12 merged; git tag w3; git checkout -q main`, has: "w1 w2",
		},
		"a pick begins in a rebase": {
			then: `git checkout -q -b up; echo up >c; on 11 up; git checkout -q main; git branch y; echo m >d; on 11 m
				GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git rebase -q -i up; git merge -q --no-edit -X ours w; git branch -q -D w
				git checkout -q -b q y; echo q1 >b; on 12 q1; echo q2 >b; on 12 q2; git checkout -q -; git checkout -q --detach HEAD; fails git cherry-pick y..q`, held: "w1 w2",
		},
		"an empty folder of a sequence": {then: `mkdir .git/sequencer`},
		"a submodule that nobody looks at": {
			then: `git checkout -q w; printf '[submodule "s"]\n\tpath = s\n\turl = ./s\n\tignore = all\n' >.gitmodules; git add .gitmodules; git update-index --add --cacheinfo 160000,$(git rev-parse w1),s; at 12; git commit -q -m sub; git tag w3; git update-index --add --cacheinfo 160000,$(git rev-parse w2),s; git commit -q -m x; git tag w4; git checkout -q main; git checkout -q w -- a b d .gitmodules; git update-index --add --cacheinfo 160000,$(git rev-parse main),s; at 13; git commit -q -m part`, has: "w1 w2",
		},
		"the clock of the user went back": {then: `git merge -q --squash w; on 11 as one; echo user >a; on 12 user; echo user >c; on 08 back`, has: "w1 w2"},
		"a file of it is a folder now":    {then: `git merge -q --squash w; on 11 as one; git rm -q a; mkdir a; echo x >a/x; git add a; on 12 folder`, has: "w1 w2"},
		"it is rebased":                   {then: `echo user >c; on 11 user; git rebase -q main w; git checkout -q main; git merge -q w`, has: "w1 w2"},
		"the user had it before": {
			early: `echo work >a; echo work >d; echo work >b; on 08 same; git revert --no-edit HEAD >/dev/null`,
		},
		"the user had a part before, and makes the rest": {
			early: `echo work >a; on 08 same; git revert --no-edit HEAD >/dev/null`, then: `echo work >b; on 11 rest; echo work >d; on 12 more`,
		},
		"only some files are there":                           {then: `git merge -q w; git config core.sparseCheckout true`},
		"a merge of it has begun":                             {then: `git merge -q --no-ff --no-commit w`, held: "w1 w2"},
		"a merge of it as one has begun":                      {then: `git merge -q --squash w`},
		"a pick on top of it has begun":                       {then: `git checkout -q -b x w; echo x >c; on 11 x; git checkout -q main; echo user >c; on 11 user; fails git cherry-pick x`, held: "w1 w2"},
		"a pick of its merge has a conflict":                  {then: `git checkout -q -b x; git merge -q --no-ff w -m x; git checkout -q main; echo user >a; on 11 user; fails git cherry-pick -m 1 x`, held: "w1 w2"},
		"a pick of commits that no branch got has a conflict": {then: `git checkout -q w; echo work >c; on 11 three; git tag -d w1 w2 >/dev/null; git tag w3; git checkout -q main; echo user >b; on 11 user; fails git cherry-pick w3~2..w3`, held: "w3"},
		"its merge has a conflict":                            {then: `echo user >a; on 11 user; fails git merge w`, held: "w1 w2"},
		"its merge is aborted":                                {then: `echo user >a; on 11 user; fails git merge w; git merge --abort`},
		"its merge is completed":                              {then: `echo user >a; on 11 user; fails git merge w; echo both >a; on 12 both`, has: "w1 w2"},
		"another merge has a conflict":                        {then: `git merge -q w; git branch o w~2; echo user >a; on 11 user; git checkout -q o; echo o >a; on 11 o; git checkout -q main; fails git merge o`, has: "w1 w2"},
		"a pick of it has a conflict":                         {then: `echo user >b; on 11 user; fails git cherry-pick w1 w2`, held: "w1 w2"},
		"such a pick is reset":                                {then: `git checkout -q -b x w; echo x >c; on 11 x; git checkout -q main; echo user >b; on 11 user; fails git cherry-pick w1 w2 x; git reset -q --hard`, held: "w1 w2"},
		"such a pick is aborted":                              {then: `echo user >b; on 11 user; fails git cherry-pick w1 w2; git cherry-pick --abort`},
		"such a pick is completed":                            {then: `echo user >b; on 11 user; fails git cherry-pick w1 w2; git checkout -q --theirs b; git add b; git -c core.editor=true cherry-pick --continue >/dev/null`, has: "w1 w2"},
		"a rebase has a conflict":                             {then: `git branch u; git merge -q w; git checkout -q u; echo user >b; on 11 user; git checkout -q main; fails git rebase u`, has: "w1", held: "w2"},
		"another rebase has a conflict":                       {then: `git merge -q w; git branch u; echo user >c; on 11 user; git checkout -q u; echo other >c; on 11 other; fails git rebase main`, has: "w1 w2"},
		"patches of it have a conflict":                       {then: `git format-patch -q -o ../patches-$$ main..w; echo user >b; on 11 user; fails git am ../patches-$$/*; rm -r ../patches-$$`, held: "w1 w2"},
	} {
		t.Run(name, func(t *testing.T) {
			g := repo(t, tree{"a": "1\n", "b": "1\n", "c": "1\n", "d": "1\n"})
			script := made + "at 09; git commit -q --amend --no-edit --reset-author\n" + c.early + work + "at 11\n" + c.then
			sh := exec.CommandContext(t.Context(), "sh", "-ec", script)
			sh.Dir, sh.Env = g.dir, append(os.Environ(), "GIT_EDITOR=true")
			if out, err := sh.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var commits []string
			names := make(map[string]string)
			for _, name := range strings.Fields(g.must("", "tag", "--list", "w?")) {
				commit := strings.TrimSpace(g.must("", "rev-parse", name))
				commits, names[commit] = append(commits, commit), name
			}
			m, err := FindMerged(t.Context(), g.dir, commits)
			if err != nil {
				t.Fatal(err)
			}
			named := func(commits []string) string {
				var all []string
				for _, one := range commits {
					all = append(all, names[one])
				}
				slices.Sort(all)
				return strings.Join(all, " ")
			}
			if named(m.Has) != c.has || named(m.Held) != c.held {
				t.Errorf("it has %q and may get or lose %q; want %q and %q", named(m.Has), named(m.Held), c.has, c.held)
			}
		})
	}
}

// What git cannot say in the middle of a merge may come or go.
func TestAllIsHeldInTheMiddleOfAMergeIfGitCannotSay(t *testing.T) {
	g := repo(t, tree{"a": "1\n"})
	work := strings.TrimSpace(g.must("", "commit-tree", "-p", "HEAD", "-m", "work", "HEAD^{tree}"))
	g.must("", "commit", "-q", "--allow-empty", "-m", "user")
	parent := strings.TrimSpace(g.must("", "rev-parse", "HEAD~1"))
	if err := os.Remove(filepath.Join(g.dir, ".git/objects", parent[:2], parent[2:])); err != nil {
		t.Fatal(err)
	}
	for _, held := range []bool{false, true} {
		m, err := FindMerged(t.Context(), g.dir, []string{work})
		if err == nil || len(m.Held) == 1 != held {
			t.Errorf("held are %v, with the error %v; want %v", m.Held, err, held)
		}
		if err := os.WriteFile(filepath.Join(g.dir, ".git/MERGE_HEAD"), []byte(work+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
