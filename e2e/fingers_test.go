package e2e

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestTheOutputOfPostCreateIsShownAlsoWhenItFails(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	r := in.Agbox(t, "create", "demo", "--image", harness.ImageBusybox, "--post-create", "echo one; echo two >&2; exit 3").Want(t, 1)
	for _, want := range []string{"running command 1 of post_create", "\n  | one\n", "\n  | two\n", "exit code 3", "was removed"} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("stderr has no %q: %q", want, r.Stderr)
		}
	}
	r = in.Agbox(t, "create", "demo", "--image", harness.ImageBusybox, "--post-create", "echo fine").Want(t, 0)
	if !strings.Contains(r.Stderr, "\n  | fine\n") || strings.Contains(r.Stdout, "fine") {
		t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
	}
	in.Must(t, "rm", "demo")
}
