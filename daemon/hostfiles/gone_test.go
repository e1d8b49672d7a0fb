package hostfiles

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/agbox/agbox/workspace/archive"
)

// whilePacked calls a function for each file, when its header is packed: a folder is open then and not yet listed.
type whilePacked func(name string)

func (f whilePacked) Header(h *tar.Header) { f(strings.TrimPrefix(h.Name, "workspace/")) }
func (f whilePacked) Content([]byte)       {}

func TestACopyHasAWholeRepositoryAlthoughGitMovesWhatItHas(t *testing.T) {
	for name, tc := range map[string]struct {
		// at is a prefix of the name of the first file at which git runs.
		at, run string
		packed  bool
	}{
		"gc at a loose object":                {".git/objects/", "gc -q", false},
		"gc at the folder of packs":           {".git/objects/pack/", "gc -q", false},
		"a new pack instead of several":       {".git/objects/pack/pack-", "repack -a -d -q", true},
		"a new pack and its index of packs":   {".git/objects/pack/multi-pack-index", "repack -a -d -q --write-midx", true},
		"references that move to one file":    {".git/refs/heads/", "pack-refs --all", false},
		"a commit after the references":       {".git/objects/", "commit -q --allow-empty -m later", false},
		"gc after a commit that is only here": {".git/refs/heads/", "gc -q --prune=now", true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			dir := h.repo(t, "people/me/app")
			for i := range 4 {
				if tc.packed {
					git(t, dir, "repack", "-q", "-d")
				}
				h.write(t, "people/me/app/file", strconv.Itoa(i))
				git(t, dir, "commit", "-q", "-a", "-m", strconv.Itoa(i))
			}
			if tc.packed {
				git(t, dir, "repack", "-q", "-d", "--write-midx")
			}
			ran := false
			got := h.copiedWhile(t, dir, whilePacked(func(name string) {
				if rest, ok := strings.CutPrefix(name, tc.at); ok && !ran && (rest != "" || tc.at != ".git/objects/") {
					ran = true
					git(t, dir, strings.Fields(tc.run)...)
				}
			}), dir)
			if !ran {
				t.Fatal("git did not run")
			}
			git(t, got, "fsck", "--no-dangling", "--no-progress")
			if out := git(t, got, "log", "--format=%s", "main"); out != "3\n2\n1\n0\nfirst" {
				t.Errorf("the copy has the commits %q", out)
			}
			if out := git(t, got, "status", "--porcelain"); out != "" {
				t.Errorf("the copy has changes: %s", out)
			}
		})
	}
}

func TestARepositoryThatGitChangesAllTheTimeIsRefusedInWords(t *testing.T) {
	for at, tc := range map[string]struct {
		changed string
		run     []string
	}{
		".git/objects/pack/*.pack": {".git/objects/pack", []string{"commit -q --allow-empty -m more", "repack -q -a -d"}},
		".git/refs/":               {".git/HEAD", []string{"checkout -q -b new", "branch -q -M new main"}},
	} {
		h := newHost(t)
		dir := h.repo(t, "people/me/app")
		git(t, dir, "repack", "-q", "-a", "-d")
		tree, err := h.Open(Copy{Source: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		n := 0
		err = tree.Pack(t.Context(), io.Discard, "workspace", archive.Owner{}, whilePacked(func(name string) {
			if is, _ := path.Match(at, name); is {
				n++
				for _, run := range tc.run {
					git(t, dir, strings.Fields(run)...)
				}
			}
		}), nil)
		if err == nil || !strings.Contains(err.Error(), dir+"/"+tc.changed+" was changed by git while it was copied, again and again: create the sandbox again") {
			t.Errorf("%s was changed %d times: %v", tc.changed, n, err)
		}
	}
}

func TestTheBranchOfTheMainWorkTreeDoesNotHoldUpTheCopyOfAnother(t *testing.T) {
	h := newHost(t)
	main, topic := h.repo(t, "people/me/app"), h.path("people/me/topic")
	git(t, main, "worktree", "add", "-q", "-b", "topic", topic)
	n := 0
	got := h.copiedWhile(t, topic, whilePacked(func(name string) {
		if name == ".git/refs/" {
			n++
			git(t, main, "checkout", "-q", "-b", strconv.Itoa(n))
		}
	}), main, topic)
	if n == 0 {
		t.Fatal("git did not run")
	}
	if out := git(t, got, "status", "--porcelain", "-b"); out != "## topic" {
		t.Errorf("the copy has %s", out)
	}
}

func TestAFolderThatIsRemovedWhileItIsCopiedIsLeftEmpty(t *testing.T) {
	h := newHost(t)
	h.write(t, "people/me/app/build/deep/file", "")
	h.write(t, "people/me/app/file", "")
	got := h.copiedWhile(t, h.path("people/me/app"), whilePacked(func(name string) {
		if name == "build/deep/" {
			if err := os.RemoveAll(h.path("people/me/app/build")); err != nil {
				t.Error(err)
			}
		}
	}))
	if _, err := os.Stat(path.Join(got, "file")); err != nil {
		t.Error(err)
	}
}

func TestGitAcceptsACopyThatWasMadeWhileItWorked(t *testing.T) {
	const commit = "commit -q -a -m later"
	points := []string{"HEAD", "refs/heads/main", "index", "objects/pack/"}
	for how, runs := range map[string][]string{
		"commit":          {commit},
		"detached commit": {"checkout -q --detach", commit},
		"new branch":      {"checkout -q -b new", commit},
		"renamed branch":  {"branch -m new", commit},
		"removed branch":  {"checkout -q -b new", "branch -q -D main", commit},
	} {
		for _, at := range points {
			for _, worktree := range []bool{false, true} {
				t.Run(fmt.Sprint(how, " at ", at, " ", worktree), func(t *testing.T) {
					h := newHost(t)
					dir := h.repo(t, "people/me/app")
					git(t, dir, "tag", "v1")
					git(t, dir, "pack-refs")
					hidden := []string{dir}
					if worktree {
						dir = h.path("people/me/main")
						git(t, hidden[0], "checkout", "-q", "--detach")
						git(t, hidden[0], "worktree", "add", "-q", dir, "main")
						hidden = append(hidden, dir)
					}
					ran := false
					got := h.copiedWhile(t, dir, whilePacked(func(name string) {
						if strings.HasPrefix(name, ".git/"+at) && !ran {
							ran = true
							h.write(t, path.Join("people/me", path.Base(dir), "file"), "later\n")
							for _, run := range runs {
								git(t, dir, strings.Fields(run)...)
							}
						}
					}), hidden...)
					if !ran {
						t.Fatal("git did not run")
					}
					git(t, got, "fsck", "--no-dangling", "--no-progress")
					head, index := git(t, got, "show", "HEAD:file"), git(t, got, "show", ":file")
					if head == "later" && index != head {
						t.Errorf("the next commit takes a commit back: HEAD has %q, the index %q", head, index)
					}
				})
			}
		}
	}
}

func TestACopyKnowsWhereItsHistoryEnds(t *testing.T) {
	for _, depth := range []string{"--depth=1", "--unshallow"} {
		for _, at := range []string{"shallow", "HEAD", "objects/"} {
			t.Run(depth+" at "+at, func(t *testing.T) {
				h := newHost(t)
				from, dir := h.repo(t, "people/me/from"), h.path("people/me/app")
				git(t, from, "commit", "-q", "--allow-empty", "-m", "second")
				git(t, from, "commit", "-q", "--allow-empty", "-m", "third")
				git(t, h.root, "clone", "-q", "--depth=2", "file://"+from, dir)
				ran := false
				got := h.copiedWhile(t, dir, whilePacked(func(name string) {
					if strings.HasPrefix(name, ".git/"+at) && !ran {
						ran = true
						git(t, from, "commit", "-q", "--allow-empty", "-m", "fourth")
						git(t, from, "commit", "-q", "--allow-empty", "-m", "fifth")
						git(t, dir, "fetch", "-q", depth)
					}
				}), dir)
				if !ran {
					t.Fatal("git did not run")
				}
				git(t, got, "fsck", "--no-dangling", "--no-progress")
			})
		}
	}
}

func TestACopyHasAllOfASplitIndex(t *testing.T) {
	for _, worktree := range []bool{false, true} {
		h := newHost(t)
		dir := h.repo(t, "people/me/app")
		hidden := []string{dir}
		if worktree {
			dir = h.path("people/me/topic")
			git(t, hidden[0], "worktree", "add", "-q", "-b", "topic", dir)
			hidden = append(hidden, dir)
		}
		n := 0
		split := func() {
			n++
			h.write(t, path.Join("people/me", path.Base(dir), strconv.Itoa(n)), "")
			git(t, dir, "update-index", "--no-split-index")
			git(t, dir, "add", "-A")
			git(t, dir, "update-index", "--split-index")
		}
		for range 8 {
			split()
		}
		before := n
		got := h.copiedWhile(t, dir, whilePacked(func(name string) {
			if n < 2*before && (name == ".git/index" || strings.HasPrefix(name, ".git/sharedindex.")) {
				split()
			}
		}), hidden...)
		if n == before {
			t.Fatal("the index was not split anew")
		}
		if all := strings.Fields(git(t, got, "ls-files")); len(all) <= before {
			t.Errorf("the index has %q", all)
		}
		git(t, got, "commit", "-q", "-a", "-m", "inside")
	}
}

func TestACopyLeavesOutLocksOfGit(t *testing.T) {
	h := newHost(t)
	dir := h.repo(t, "people/me/app")
	git(t, dir, "submodule", "--quiet", "add", h.repo(t, "people/me/part"), "part")
	git(t, dir, "commit", "-q", "-m", "with a part")
	locks := []string{
		"HEAD.lock", "index.lock", "packed-refs.lock", "config.lock", "shallow.lock", "ORIG_HEAD.lock", "refs/heads/main.lock",
		"refs/heads/new/branch.lock", "refs/tags/v1.lock", "logs/HEAD.lock", "objects/maintenance.lock", "objects/info/commit-graph.lock",
		"modules/part/index.lock", "modules/part/refs/heads/main.lock", "gc.pid",
	}
	kept := []string{".git/hooks/mine.lock", "index.lock", "refs/heads/main.lock", "yarn.lock"}
	for _, name := range locks {
		h.write(t, "people/me/app/.git/"+name, "1 another-host")
	}
	for _, name := range kept {
		h.write(t, "people/me/app/"+name, "")
	}
	got := h.copied(t, dir)
	for _, name := range locks {
		if _, err := os.Lstat(path.Join(got, ".git", name)); err == nil {
			t.Errorf("the copy has %s", name)
		}
	}
	for _, name := range kept {
		if _, err := os.Lstat(path.Join(got, name)); err != nil {
			t.Error(err)
		}
	}
	git(t, got, "add", "-A")
	git(t, got, "commit", "-q", "-m", "inside")
	git(t, got, "tag", "v1")
	git(t, got, "config", "a.b", "c")
	git(t, got, "gc", "-q")
	git(t, path.Join(got, "part"), "commit", "-q", "--allow-empty", "-m", "inside")
}
