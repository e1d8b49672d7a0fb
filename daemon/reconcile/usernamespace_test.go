package reconcile

import (
	"os"
	"slices"
	"testing"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestADaemonWithoutRootSharesItsFilesWithRootInAUserNamespace(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	engine.RootUID, engine.RootGID = 165536, 165536
	l := begin(t, engine, t.TempDir(), unprivileged)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	for path, want := range map[string]os.FileMode{
		l.loop.paths.GuestBoot("a"): 0o640, l.loop.paths.GuestLink("a"): 0o770, l.loop.paths.SandboxLogs("a"): 0o770,
	} {
		// The kernel shows the rights that the list gives in place of the group's.
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, want %o: %v", path, info.Mode(), want, err)
		}
	}
	boot, err := readBoot(l.loop.paths.GuestBoot("a"))
	if err != nil || !boot.GetGroupAccess() || boot.GetOwnerUid() != 0 || boot.GetOwnerGid() != 0 {
		t.Errorf("the boot configuration is %v, %v", boot, err)
	}

	l.leave("a", "e.stdout.log")
	release := engine.Hang(runtimetest.VerbWaitContainer)
	l.want(l.ledger.RequestDelete, "a")
	l.until("the reclaimer", func() bool { return engine.Calls(runtimetest.VerbWaitContainer) > 0 })
	spec, _ := engine.Spec(runtime.ReclaimerName("a"))
	release()
	if !slices.Equal(spec.Cmd, []string{"-1", "-1"}) {
		t.Errorf("the reclaimer is told to give the folders to %v", spec.Cmd)
	}
	l.await("a", machine.Deleted)
}
