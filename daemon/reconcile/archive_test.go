package reconcile

import (
	"io"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// TestAnArchiveOfARemovedContainerIsNotAFileThatIsNotThere: the files of the workspace would count
// as removed in the sandbox.
func TestAnArchiveOfARemovedContainerIsNotAFileThatIsNotThere(t *testing.T) {
	t.Parallel()
	fake := runtimetest.NewFake()
	l := begin(t, fake, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.stop("a")
	l.await("a", machine.Stopped)
	sb, _ := l.ledger.Sandbox("a")
	archive := func() error {
		stream, err := l.loop.Archive(t.Context(), sb, "/workspace")
		if err == nil {
			_, err = io.Copy(io.Discard, stream)
		}
		return err
	}
	if err := archive(); !errdefs.IsNotFound(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	fake.SetFile("/workspace", "content")
	if err := archive(); err != nil {
		t.Error(err)
	}
	reads := fake.Calls(runtimetest.VerbReadFile)
	release := fake.Hang(runtimetest.VerbReadFile)
	done := make(chan error, 1)
	go func() { done <- archive() }()
	l.until("the archive is asked for", func() bool { return fake.Calls(runtimetest.VerbReadFile) > reads })
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	release()
	if err := <-done; errdefs.IsNotFound(err) || fault.ReasonOf(err) != agboxv1.ErrorReason_PRIMARY_MISSING {
		t.Errorf("a container that was removed meanwhile: %v", err)
	}
}
