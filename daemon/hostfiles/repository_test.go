package hostfiles

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/archive"
)

// git runs git on a folder, without settings of this machine.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v in %s: %v\n%s", args, dir, err, out)
	}
	return strings.TrimSpace(string(out))
}

// repo makes a repository with a commit.
func (h *host) repo(t *testing.T, rel string) string {
	t.Helper()
	h.write(t, rel+"/file", "one\n")
	git(t, h.path(rel), "init", "-q", "-b", "main")
	git(t, h.path(rel), "add", "-A")
	git(t, h.path(rel), "commit", "-qm", "first")
	return h.path(rel)
}

// copied copies a folder as a sandbox gets it, and hides the host's repositories meanwhile.
func (h *host) copied(t *testing.T, source string, hidden ...string) string {
	t.Helper()
	return h.copiedWhile(t, source, nil, hidden...)
}

// copiedWhile is copied with a record of what is packed.
func (h *host) copiedWhile(t *testing.T, source string, record archive.Record, hidden ...string) string {
	t.Helper()
	tree, err := h.Open(Copy{Source: source, Target: "/workspace", Gitignore: true})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	to, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	out, in := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := tree.Pack(t.Context(), in, "workspace", archive.Owner{UID: os.Getuid(), GID: os.Getgid()}, record, func(int64, int64) {})
		_ = in.CloseWithError(err)
		packed <- err
	}()
	_, err = archive.Unpack(t.Context(), out, int(to.Fd()), archive.UnpackOptions{})
	_ = out.Close()
	if packErr := <-packed; packErr != nil || err != nil {
		t.Fatal(packErr, err)
	}
	for _, one := range hidden {
		if err := os.Rename(one, one+".hidden"); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(to.Name(), "workspace")
}

func TestACopiedWorktreeHasARepositoryOfItsOwn(t *testing.T) {
	h := newHost(t)
	main := h.repo(t, "people/me/app")
	git(t, main, "worktree", "add", "-q", "-b", "other", h.path("people/me/other"))
	git(t, main, "worktree", "add", "-q", "-b", "topic", h.path("people/me/topic"))
	topic := h.path("people/me/topic")
	h.write(t, "people/me/topic/file", "two\n")
	git(t, topic, "commit", "-qam", "second")
	h.write(t, "people/me/topic/new", "staged\n")
	git(t, topic, "add", "new")
	h.write(t, "people/me/topic/file", "changed\n")
	h.write(t, "people/me/app/.git/hooks/pre-commit", "#!/of/the/host\n")
	if err := os.Chmod(h.path("people/me/app/.git/hooks/pre-commit"), 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, main, "config", "core.worktree", main)
	h.write(t, "people/me/app/file", "of the main work tree\n")
	git(t, main, "add", "-A")
	git(t, main, "tag", "v1")
	got := h.copied(t, topic, main, topic)
	for args, want := range map[string]string{
		"status --porcelain=v1 -b":            "## topic\n M file\nA  new",
		"log --format=%s":                     "second\nfirst",
		"tag":                                 "v1",
		"branch --format=%(refname:short)":    "main\nother\ntopic",
		"worktree list --porcelain":           "worktree " + got + "\nHEAD " + git(t, got, "rev-parse", "HEAD") + "\nbranch refs/heads/topic",
		"log -g --format=%gs HEAD":            "commit: second\nreset: moving to HEAD",
		"fsck --no-dangling --no-progress":    "",
		"rev-parse --show-toplevel --git-dir": got + "\n.git",
	} {
		if out := git(t, got, strings.Fields(args)...); out != want {
			t.Errorf("git %s says\n%s\nand not\n%s", args, out, want)
		}
	}
	git(t, got, "commit", "-qam", "third")
	if out := git(t, got, "status", "--porcelain"); out != "" {
		t.Errorf("after a commit: %s", out)
	}
}

func TestACopiedWorktreeOfABareRepositoryHasAWorkTree(t *testing.T) {
	h := newHost(t)
	git(t, h.root, "clone", "-q", "--bare", h.repo(t, "people/me/app"), h.path("people/me/bare"))
	bare, topic := h.path("people/me/bare"), h.path("people/me/topic")
	git(t, bare, "worktree", "add", "-q", "-b", "topic", topic)
	git(t, bare, "config", "extensions.worktreeConfig", "true")
	git(t, topic, "config", "--worktree", "user.name", "of the worktree")
	got := h.copied(t, topic, bare, topic)
	if out := git(t, got, "status", "--porcelain", "-b") + " " + git(t, got, "config", "user.name"); out != "## topic of the worktree" {
		t.Errorf("got %s", out)
	}
}

func TestCopiedSubmodulesWork(t *testing.T) {
	h := newHost(t)
	part, main := h.repo(t, "people/me/part"), h.repo(t, "people/me/app")
	git(t, main, "submodule", "--quiet", "add", part, "lib/part")
	git(t, main, "commit", "-qm", "with a part")
	git(t, main, "worktree", "add", "-q", "-b", "topic", h.path("people/me/topic"))
	topic := h.path("people/me/topic")
	git(t, topic, "submodule", "--quiet", "update", "--init")
	works := func(dir string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("more\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		git(t, dir, "commit", "-qam", "more")
		if out := git(t, dir, "log", "--format=%s"); out != "more\nfirst" {
			t.Errorf("%s: %s", dir, out)
		}
	}
	all := h.copied(t, main)
	alone := h.copied(t, filepath.Join(main, "lib/part"))
	ofTree := h.copied(t, topic, main, topic)
	works(filepath.Join(all, "lib/part"))
	works(alone)
	works(filepath.Join(ofTree, "lib/part"))
	for _, dir := range []string{all, ofTree} {
		if out := git(t, dir, "status", "--porcelain"); out != "M lib/part" {
			t.Errorf("%s: %q", dir, out)
		}
	}
}

func TestAForgedGitFileBringsInNothing(t *testing.T) {
	h := newHost(t)
	main := h.repo(t, "people/me/app")
	git(t, main, "worktree", "add", "-q", "-b", "topic", h.path("people/me/topic"))
	own := filepath.Join(main, ".git/worktrees/topic")
	// A folder that looks like one of a worktree, and says that a private one is shared.
	h.write(t, "people/me/evil/worktrees/x/HEAD", "ref: refs/heads/main\n")
	h.write(t, "people/me/evil/worktrees/x/commondir", main+"/.git\n")
	h.write(t, "people/me/evil/worktrees/x/gitdir", h.path("people/me/src/.git")+"\n")
	h.link(t, own, "people/me/link")
	for _, to := range []string{own, filepath.Join(main, ".git"), h.path("people/me/evil/worktrees/x"), h.path("people/me/.ssh"), h.path("people/me/link"), "/nothing", "", "/proc/self/environ\x00"} {
		h.write(t, "people/me/src/.git", "gitdir: "+to+"\n")
		got := h.copied(t, h.path("people/me/src"))
		var st unix.Stat_t
		if err := unix.Lstat(got+"/.git", &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			t.Errorf("%q: mode %o, %v", to, st.Mode, err)
		}
	}
	if found, err := FindRepository(h.path("people/me/topic")); err != nil || !found.Worktree() || found.Inside("/workspace") != main+"/.git" {
		t.Errorf("the real one: %+v, %v", found, err)
	}
	for _, dir := range []string{main, h.path("other")} {
		if found, err := FindRepository(dir); found != nil || err != nil {
			t.Errorf("%s: %+v, %v", dir, found, err)
		}
	}
}

func TestARepositoryIsCoveredWhateverItsNameIs(t *testing.T) {
	h := newHost(t)
	git(t, h.root, "clone", "-q", "--bare", h.repo(t, "people/me/app"), h.path("people/me/store"))
	git(t, h.path("people/me/store"), "worktree", "add", "-q", h.path("people/me/topic"))
	held, err := h.Hold(h.path("people/me/store"), Writable, false)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	all, err := h.Covers(held)
	want := map[string]bool{"config": true, "hooks": true, "worktrees/topic/commondir": true}
	for _, c := range all {
		if c.ReadOnly {
			delete(want, c.Name)
		}
	}
	if err != nil || len(want) > 0 {
		t.Errorf("without %v: %+v, %v", want, all, err)
	}
}

func TestObjectsThatARepositoryBorrowsAreFound(t *testing.T) {
	h := newHost(t)
	first := h.repo(t, "people/me/first")
	git(t, h.root, "clone", "-q", "--shared", first, h.path("people/me/second"))
	git(t, h.root, "clone", "-q", "--shared", h.path("people/me/second"), h.path("people/me/app"))
	git(t, h.path("people/me/app"), "worktree", "add", "-q", h.path("people/me/topic"))
	objects := func(rel string) Borrowed {
		at := filepath.Join(h.path(rel), ".git/objects")
		return Borrowed{Source: at, Inside: at}
	}
	both := []Borrowed{objects("people/me/second"), objects("people/me/first")}
	want := func(rel string, mounted bool, want []Borrowed) {
		t.Helper()
		if got := FindBorrowed(h.path(rel), "/workspace", mounted); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", rel, got, want)
		}
	}
	want("people/me/first", false, nil)
	want("people/me/app", false, both)
	want("people/me/topic", false, both)
	want("people/me/topic", true, both)
	want("other", false, nil)
	h.write(t, "people/me/first/.git/objects/info/alternates", "# none\n\n../../sub/objects\n../../../../lib/objects\n")
	want("people/me/first", false, []Borrowed{{Source: h.path("people/lib/objects"), Inside: "/lib/objects"}})
	// A circle, as a hostile folder may have it.
	h.write(t, "people/me/first/.git/objects/info/alternates", first+"/.git/objects\n")
	if got := FindBorrowed(first, "/workspace", false); len(got) != maxBorrowing {
		t.Errorf("a circle: %+v", got)
	}
}
