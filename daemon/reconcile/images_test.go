package reconcile

import (
	"testing"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// An image that was found for a container is there when the container is made.
func TestNoImageIsRemovedWhileAContainerIsMade(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	inUse := func() bool {
		return fault.ReasonOf(l.loop.RemoveImage(t.Context(), runtimetest.FakeImage, false)) == agboxv1.ErrorReason_IMAGE_IN_USE
	}
	release := engine.Hang(runtimetest.VerbEnsureContainer)
	l.create("a", runtimetest.FakeImage)
	l.until("the container is being made", func() bool { return engine.Calls(runtimetest.VerbEnsureContainer) == 1 })
	if !inUse() {
		t.Error("the image of a container that is being made is removed")
	}
	release()
	l.await("a", machine.Ready)
	if !inUse() {
		t.Error("the image of a container is removed")
	}
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	if err := l.loop.RemoveImage(t.Context(), runtimetest.FakeImage, false); err != nil {
		t.Errorf("after the sandbox: %v", err)
	}
}
