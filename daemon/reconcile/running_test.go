package reconcile

import (
	"io"
	"os"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestTheFirstProcessIsThatOfTheRunningPrimary(t *testing.T) {
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	if pid, err := l.loop.FirstPID(t.Context(), "a"); err != nil || pid != os.Getpid() {
		t.Errorf("FirstPID gives %d, %v", pid, err)
	}
	l.stop("a")
	l.await("a", machine.Stopped)
	if pid, err := l.loop.FirstPID(t.Context(), "a"); err == nil {
		t.Errorf("the first process of a stopped container is %d", pid)
	}
	if pid, err := l.loop.FirstPID(t.Context(), "unknown"); err == nil {
		t.Errorf("the first process of no sandbox is %d", pid)
	}
}

func TestARenamedPrimaryHasItsFirstProcess(t *testing.T) {
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	primary := l.objects().Containers[0]
	engine.Rename(primary.ID, "renamed")
	if pid, err := l.loop.FirstPID(t.Context(), "a"); err != nil || pid != os.Getpid() {
		t.Errorf("FirstPID gives %d, %v", pid, err)
	}
	engine.AddForeign(primary.Name, runtime.Identity{})
	if pid, err := l.loop.FirstPID(t.Context(), "a"); err != nil || pid != os.Getpid() {
		t.Errorf("beside a foreign container of its name: FirstPID gives %d, %v", pid, err)
	}
}

func TestAForeignContainerWithTheNameOfAPrimaryHasNoFirstProcess(t *testing.T) {
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	primary := l.objects().Containers[0]
	engine.Vanish(primary.ID)
	image, err := engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: runtimetest.FakeImage}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := engine.EnsureContainer(t.Context(), runtime.ContainerSpec{Name: primary.Name, ImageID: image.ID, Identity: runtime.Identity{
		InstallID: primary.InstallID, SandboxID: "a", Nonce: "another", Role: runtime.RolePrimary,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if pid, err := l.loop.FirstPID(t.Context(), "a"); err == nil {
		t.Errorf("the first process of a foreign container passes as %d", pid)
	}
}

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
