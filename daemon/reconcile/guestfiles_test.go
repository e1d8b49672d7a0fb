package reconcile

import (
	"os"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestAStartMakesRemovedGuestFilesAgain(t *testing.T) {
	engine := runtimetest.NewFake()
	image := engine.AddImage("moving:latest", runtime.Image{User: "agent", Cmd: []string{"serve"}})
	engine.AddImage("kept:latest", image)
	l := begin(t, engine, t.TempDir())
	l.create("a", "moving:latest")
	l.await("a", machine.Ready)
	boot := l.boot("a")
	if boot.GetUser() != "agent" || !slices.Equal(boot.GetCommand(), []string{"serve"}) {
		t.Fatalf("the boot configuration is %v", boot)
	}
	for name, gone := range map[string]string{
		"the log folder":          l.loop.paths.SandboxLogs("a"),
		"the supervisor's folder": l.loop.paths.Guest("a"),
		"the socket's folder":     l.loop.paths.GuestLink("a"),
		"the boot configuration":  l.loop.paths.GuestBoot("a"),
	} {
		t.Run(name, func(t *testing.T) {
			l.stop("a")
			l.await("a", machine.Stopped)
			// The name of the image refers to another one by now.
			engine.AddImage("moving:latest", runtime.Image{User: "root"})
			if err := os.RemoveAll(gone); err != nil {
				t.Fatal(err)
			}
			l.want(l.ledger.RequestResume, "a")
			l.await("a", machine.Ready)
			for _, dir := range []string{l.loop.paths.SandboxLogs("a"), l.loop.paths.GuestLink("a")} {
				if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
					t.Errorf("%s: %v, %v", dir, info, err)
				}
			}
			if again := l.boot("a"); !proto.Equal(again, boot) {
				t.Errorf("the boot configuration was %v and is %v", boot, again)
			}
		})
	}
}

func TestAStartThatCannotLearnOfTheImageFailsInWords(t *testing.T) {
	engine := runtimetest.NewFake()
	image := engine.AddImage("removed:latest", runtime.Image{User: "agent"})
	l := begin(t, engine, t.TempDir())
	l.create("a", "removed:latest")
	l.await("a", machine.Ready)
	l.stop("a")
	l.await("a", machine.Stopped)
	if err := os.RemoveAll(l.loop.paths.Guest("a")); err != nil {
		t.Fatal(err)
	}
	engine.AddImage("removed:latest", runtime.Image{User: "root"}) // its id no longer exists
	l.want(l.ledger.RequestResume, "a")
	r := l.await("a", machine.Failed)
	if r.ErrorReason != agboxv1.ErrorReason_IMAGE_NOT_FOUND.String() || r.ErrorMessage != "There is no image "+image.ID+": add it to the fake." {
		t.Errorf("it failed with %s: %s", r.ErrorReason, r.ErrorMessage)
	}
}

// boot reads the boot configuration of a sandbox's supervisor.
func (l *life) boot(id string) *guestv1.BootConfig {
	l.t.Helper()
	raw, err := os.ReadFile(l.loop.paths.GuestBoot(id))
	if err != nil {
		l.t.Fatal(err)
	}
	boot := new(guestv1.BootConfig)
	if err := proto.Unmarshal(raw, boot); err != nil {
		l.t.Fatal(err)
	}
	return boot
}
