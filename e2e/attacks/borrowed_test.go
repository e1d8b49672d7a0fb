package attacks

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestARepositoryThatBorrowsObjectsWorksWithThem(t *testing.T) {
	t.Parallel()
	Row(t, 3, "a repository names the objects of a private one as its own (alternates)")
	in := harness.New(t)
	dir := project(t, in)
	git(t, in.Home, "clone", "-q", "--shared", dir, "borrower")
	objects := filepath.Join(dir, ".git/objects")
	borrower := filepath.Join(in.Home, "borrower")
	// Nothing comes in on the word of a file. The notice names the mount that is missing.
	r := in.Agbox(t, append([]string{"create", "without", "--image", harness.ImageDebian, "--workspace", borrower}, withGit(t)...)...).Want(t, 0)
	if !strings.Contains(r.Stderr, "--mount "+objects+":"+objects) {
		t.Errorf("create says: %s", r.Stderr)
	}
	harness.WantSame(t, "without", inside(t, in, "without", "ls "+objects+" 2>/dev/null || echo nothing"), "nothing\n")
	r = in.Agbox(t, append([]string{"create", "with", "--image", harness.ImageDebian, "--workspace", borrower, "--mount", objects + ":" + objects}, withGit(t)...)...).Want(t, 0)
	if strings.Contains(r.Stderr, "borrows") {
		t.Errorf("create says: %s", r.Stderr)
	}
	harness.WantSame(t, "with", inside(t, in, "with", "cd /workspace; git status --porcelain; echo two >>main.c; git commit -qam second; git log --format=%s; (echo x >"+objects+"/x) 2>/dev/null || echo refused"),
		"second\nfirst\nrefused\n")
}
