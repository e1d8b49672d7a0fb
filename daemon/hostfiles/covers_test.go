package hostfiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// covered returns the names of the read-only covers of a folder, and all of them.
func (h *host) covered(t *testing.T, dir string) (readOnly, all []string) {
	t.Helper()
	held, err := h.Hold(dir, Writable, false)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	parts, err := h.Covers(held)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range parts {
		all = append(all, c.Name)
		if c.ReadOnly {
			readOnly = append(readOnly, c.Name)
		}
	}
	return readOnly, all
}

func TestRepositoriesBelowAMountAreCovered(t *testing.T) {
	h := newHost(t)
	top := h.repo(t, "people/me/app")
	h.repo(t, "people/me/app/vendor/deep/one")
	h.repo(t, "people/me/app/plain/part")
	git(t, h.path("people/me/app/plain"), "clone", "-q", "--bare", "part", "store")
	// Git takes these two for repositories too: parts that are links, and parts in another folder.
	h.write(t, "people/me/app/linked/HEAD", "ref: refs/heads/main\n")
	h.write(t, "people/me/app/linked/config", "")
	h.link(t, h.path("people/me/app/linked"), "people/me/app/linked/objects")
	h.link(t, h.path("people/me/app/linked"), "people/me/app/linked/refs")
	h.write(t, "people/me/app/shared/HEAD", "ref: refs/heads/main\n")
	h.write(t, "people/me/app/shared/commondir", "../plain/store\n")
	h.write(t, "people/me/app/.claude/settings.json", "{}")
	h.write(t, "people/me/app/.claude/notes", "")
	h.write(t, "people/me/app/AGENTS.md", "")
	git(t, h.path("people/me/app/plain/part"), "worktree", "add", "-q", h.path("people/me/app/trees/topic"))
	h.link(t, h.path("people"), "people/me/app/loop")
	readOnly, all := h.covered(t, top)
	for _, want := range []string{
		".git/config", ".git/hooks", "vendor/deep/one/.git/config", "vendor/deep/one/.git/hooks", "plain/part/.git/config",
		"plain/part/.git/worktrees/topic/commondir", "plain/store/config", "plain/store/hooks", "trees/topic/.git",
		"linked/config", "shared/commondir", ".claude/settings.json",
	} {
		if !slices.Contains(readOnly, want) {
			t.Errorf("%s is not covered: %v", want, readOnly)
		}
	}
	for _, want := range []string{"vendor", "vendor/deep", "vendor/deep/one", "vendor/deep/one/.git", "trees/topic", ".claude"} {
		if !slices.Contains(all, want) || slices.Contains(readOnly, want) {
			t.Errorf("%s is not pinned: %v", want, all)
		}
	}
	if slices.ContainsFunc(all, func(name string) bool { return strings.HasPrefix(name, "loop") }) {
		t.Errorf("a link was followed: %v", all)
	}
	// The store is a repository, and its parts are none.
	if readOnly, _ = h.covered(t, h.path("people/me/app/plain/store")); !slices.Equal(readOnly, []string{"config", "hooks"}) {
		t.Errorf("a mounted repository: %v", readOnly)
	}
}

func TestRepositoriesThatCannotBeCoveredAreRefused(t *testing.T) {
	h := newHost(t)
	h.repo(t, "people/me/other")
	h.write(t, "people/me/app/part/file", "x")
	h.link(t, h.path("people/me/other/.git"), "people/me/app/part/.git")
	refused := func(dir, why string) {
		t.Helper()
		held, err := h.Hold(dir, Writable, false)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if all, err := h.Covers(held); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, %v", all, err)
		}
	}
	refused(h.path("people/me/app"), "part/.git in it is a symbolic link")
	for i := range maxGitFolders + 1 {
		h.write(t, fmt.Sprintf("people/me/many/%d/.git", i), "gitdir: x\n")
	}
	refused(h.path("people/me/many"), "more than 64 repositories")
}

func TestWhatCameLaterIsUncovered(t *testing.T) {
	h := newHost(t)
	top := h.repo(t, "people/me/app")
	h.repo(t, "people/me/app/old")
	covered := make(map[string]bool)
	readOnly, _ := h.covered(t, top)
	for _, name := range readOnly {
		covered[filepath.Join(top, name)] = true
	}
	want := func(paths ...string) {
		t.Helper()
		held, err := Again(top)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		found, all, err := h.Uncovered(held, covered)
		for i, p := range paths {
			paths[i] = filepath.Join(top, p)
		}
		slices.Sort(found)
		if err != nil || !all || !slices.Equal(found, paths) {
			t.Errorf("found %q, %v, %v; want %q", found, all, err, paths)
		}
	}
	want()
	h.repo(t, "people/me/app/new/one")
	h.write(t, "people/me/app/.envrc", "true")
	h.write(t, "people/me/app/file2", "true")
	h.write(t, "people/me/app/old/.git/commondir", ".")
	h.write(t, "people/me/app/sub/.git", "gitdir: ../x")
	for _, name := range []string{"bare/HEAD", "bare/config", "bare/hooks/x", "bare/objects/x", "bare/refs/x", "plain/HEAD", "plain/objects/x", "plain/refs/x"} {
		h.write(t, "people/me/app/"+name, "x")
	}
	if err := os.Symlink("x", filepath.Join(top, ".idea")); err != nil {
		t.Fatal(err)
	}
	want(".envrc", ".idea", "bare", "new/one/.git", "old/.git/commondir", "plain", "sub/.git")
}

func TestTheSearchForRepositoriesIsBoundedAndSaysSo(t *testing.T) {
	h := newHost(t)
	for _, dir := range []string{"a/deep", "b", "c"} {
		h.write(t, "people/me/app/"+dir+"/.git", "gitdir: x")
	}
	held, err := h.Hold(h.path("people/me/app"), Writable, false)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for most, want := range map[int][]string{1: nil, 2: nil, 3: {"b/.git"}, 4: {"b/.git", "c/.git"}, 5: {"b/.git", "c/.git", "a/deep/.git"}} {
		n := nestedWalk{held: held, most: most}
		if all := n.look(".git"); all != (most == 5) || !slices.Equal(n.files, want) {
			t.Errorf("%d folders: %v, %v", most, all, n.files)
		}
	}
}

// TestAFolderThatCannotBeReadIsNotSearched: who can write in a mount can take the right to read a
// folder away from the daemon, with the repository in it.
func TestAFolderThatCannotBeReadIsNotSearched(t *testing.T) {
	h := newHost(t)
	top := h.repo(t, "people/me/app")
	h.repo(t, "people/me/app/lib")
	h.write(t, "people/me/app/.git/modules/sub/HEAD", "x")
	asNobody(t, h.path("."))
	for _, hidden := range []string{"", "lib", ".git/modules"} {
		if hidden != "" {
			if err := os.Chmod(filepath.Join(top, hidden), 0); err != nil {
				t.Fatal(err)
			}
		}
		held, err := Again(top)
		if err != nil {
			t.Fatal(err)
		}
		_, usual := h.Covers(held)
		h.Thorough = true
		_, thorough := h.Covers(held)
		h.Thorough = false
		searched := h.Searched(held)
		held.Close()
		if whole := hidden == ""; usual != nil || searched != whole || (thorough == nil) != whole {
			t.Errorf("with %q unreadable: %v, searched %v; a thorough search: %v", hidden, usual, searched, thorough)
		}
		if hidden != "" {
			if err := os.Chmod(filepath.Join(top, hidden), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// asNobody lets the test, if it is root, use the files below a folder as a user for whom
// permissions hold.
func asNobody(t *testing.T, folder string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	err := filepath.WalkDir(folder, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, nobody, nobody))
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	if err := unix.Setfsuid(nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setfsuid(0); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
}
