package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAStoppedSandboxIsComparedAndNotStarted(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n", "b": "1\n", ".gitignore": "*.log\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "cd /workspace; echo 2 >a; rm b; echo 3 >c; ln c d; ln -s /etc/passwd e; mkdir -p out; echo x >out/x.log")
	running := in.Must(t, "diff", "demo")
	in.Must(t, "stop", "demo")
	if stopped := in.Must(t, "diff", "demo"); stopped != running {
		t.Errorf("stopped:\n%s\nrunning:\n%s", stopped, running)
	}
	harness.WantSame(t, "all", in.Must(t, "diff", "demo", "--all", "--name-only"), "a\nb\nc\nd\ne\nout/x.log")
	in.Must(t, "apply", "demo")
	wantFile(t, filepath.Join(dir, "a"), "2\n")
	wantFile(t, filepath.Join(dir, "d"), "3\n")
	harness.WantSame(t, "afterwards", in.Must(t, "diff", "demo"), "")
	if text := in.Must(t, "inspect", "demo", "--format", "{{.sandbox.state}}"); !strings.EqualFold(text, "stopped") {
		t.Errorf("it is %s", text)
	}
	in.Must(t, "start", "demo")
	harness.WantSame(t, "started", in.Must(t, "diff", "demo"), "")
}

// TestASandboxThatEndsUnderItsComparisonIsComparedAllTheSame stops it behind the back of the daemon
// while it is compared again and again.
func TestASandboxThatEndsUnderItsComparisonIsComparedAllTheSame(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageUser, "--workspace", in.write(t, "project", map[string]string{"a": "1\n"}))
	in.inside(t, "demo", "echo 2 >/workspace/a")
	ctx, primary := harness.Bounded(t), in.primary(t, box).ID
	stopped := make(chan error, 1)
	go func() { stopped <- harness.DockerAPI.ContainerStop(ctx, primary, container.StopOptions{}) }()
	for ended := false; !ended; {
		h, err := in.Client(t).GetSandbox(ctx, box)
		if err != nil {
			t.Fatal(err)
		}
		ended = h.GetSandbox().GetState() == agboxv1.SandboxState_SANDBOX_STATE_FAILED
		harness.WantSame(t, "the changes", in.Must(t, "diff", "demo", "--name-only"), "a")
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
