package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

func TestAnImageIsBuiltListedAndUsed(t *testing.T) {
	t.Parallel()
	// A new name each time: the engine caches what it has built before.
	who := strings.ToLower(ids.New())
	tag := "agbox-test/built-" + who + ":1"
	in := newInstall(t)
	in.RemoveImage(tag)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"docker/Dockerfile": "FROM " + harness.ImageBusybox + "\nARG WHO=nobody\nCOPY . /files/\nRUN echo built for $WHO | tee /who; ls -R /files\n",
		".dockerignore":     "*.log\nsecret\n!keep.log\n",
		"a.log":             "", "keep.log": "", "secret/key": "", "sub/file": "content",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub/file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	r := in.Agbox(t, "image", "build", "-t", tag, "-f", "docker/Dockerfile", "--build-arg", "WHO="+who, dir).Want(t, 0)
	id := strings.TrimSpace(r.Stdout)
	for _, word := range []string{"built for " + who, "keep.log", "Step 1/"} {
		if !strings.Contains(r.Stderr, word) {
			t.Errorf("the output of the build lacks %q:\n%s", word, r.Stderr)
		}
	}
	if strings.Contains(r.Stderr, "a.log") || strings.Contains(r.Stderr, "secret") {
		t.Errorf("what .dockerignore names came in:\n%s", r.Stderr)
	}
	if table := in.Must(t, "image", "ls"); !strings.Contains(table, tag) || !strings.Contains(table, id[len("sha256:"):][:12]) {
		t.Errorf("image ls shows\n%s", table)
	}
	in.Create(t, "demo", tag)
	harness.WantSame(t, "inside", in.Must(t, "exec", "demo", "--", "cat", "/who", "/files/link"), "built for "+who+"\ncontent")
	in.Must(t, "rm", "-f", "demo")
}

func TestABuildThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := t.TempDir()
	refused(t, in.Agbox(t, "image", "build", dir), 4, "Dockerfile")
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+harness.ImageBusybox+"\nRUN echo before; exit 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := in.Agbox(t, "image", "build", dir).Want(t, 4)
	if !strings.Contains(r.Stderr, "before") || !strings.Contains(r.Stderr, "agbox: The image could not be built: ") || !strings.Contains(r.Stderr, "3") {
		t.Errorf("the build says\n%s", r.Stderr)
	}
	refused(t, in.Agbox(t, "image", "build", filepath.Join(dir, "missing")), 2, "cannot be sent")
	refused(t, in.Agbox(t, "image", "build", "-t", "UPPER", dir), 2, "UPPER")
}

func TestAWrongImageIsASentenceWithinSecondsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"create", "demo", "--image", "127.0.0.1:1/no-such:1"}, 8, "registry cannot be reached"},
		{[]string{"create", "demo", "--image", "agbox-test/no-such:1", "--pull", "never"}, 3, "pull policy is never"},
		{[]string{"create", "demo", "--image", harness.ImageBusybox, "--pull", "never", "--platform", "linux/s390x"}, 3, "linux/s390x"},
		{[]string{"create", "demo", "--image", "Not An Image"}, 2, "not the name of an image"},
		{[]string{"image", "pull", "127.0.0.1:1/no-such:1"}, 8, "registry cannot be reached"},
	} {
		begun := time.Now()
		r := in.Agbox(t, c.args...).Want(t, c.code)
		if !strings.Contains(r.Stderr, c.says) {
			t.Errorf("%v says %q, want %q", c.args, r.Stderr, c.says)
		}
		t.Logf("%v took %v", c.args, time.Since(begun).Round(time.Millisecond))
		harness.Eventually(t, fmt.Sprint("nothing is left of ", c.args), func() bool { return in.Inventory(t).Empty() })
	}
}
