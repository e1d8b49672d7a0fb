package reconcile

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestEveryStartWritesWhatTheMountsAre(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "project")
	fresh := func() {
		if err := os.MkdirAll(filepath.Join(dir, ".git", "hooks"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fresh()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createSpec("a", &agboxv1.CreateSpec{Workspace: &agboxv1.WorkspaceSpec{Source: dir, Mount: proto.Bool(true)}})
	l.await("a", machine.Ready)
	check := func() {
		t.Helper()
		boot := l.boot("a")
		want := []struct{ source, target string }{{dir, "/workspace"}, {dir + "/.git", "/workspace/.git"}, {dir + "/.git/hooks", "/workspace/.git/hooks"}}
		if len(boot.GetMounts()) != len(want) {
			t.Fatalf("written are %v", boot.GetMounts())
		}
		for i, m := range boot.GetMounts() {
			id, err := filesystem.IDOfPath(want[i].source)
			if err != nil {
				t.Fatal(err)
			}
			if m.GetSource() != want[i].source || m.GetTarget() != want[i].target || !reflect.DeepEqual(m.GetFile(), bootIdentity(id)) || id.Type != unix.S_IFDIR {
				t.Errorf("written is %v, want %+v, %v", m, want[i], id)
			}
		}
		if link, err := filesystem.IDOfPath(l.loop.paths.GuestLink("a")); err != nil || !reflect.DeepEqual(boot.GetLink(), bootIdentity(link)) {
			t.Errorf("the socket's folder is written as %v, want %v, %v", boot.GetLink(), link, err)
		}
	}
	check()
	l.stop("a")
	l.await("a", machine.Stopped)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	fresh()
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	check()
	l.stop("a")
	l.await("a", machine.Stopped)
	if err := os.Rename(dir, dir+".older"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir+".old", dir); err != nil {
		t.Fatal(err)
	}
	l.want(l.ledger.RequestResume, "a")
	if r := l.await("a", machine.Failed); !strings.Contains(r.ErrorMessage, "leads to "+dir+".old by a symbolic link") {
		t.Errorf("it failed by %s", r.ErrorMessage)
	}
}

func TestAStartOfASandboxWithoutMountsWritesNone(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	if boot := l.boot("a"); len(boot.GetMounts()) > 0 || boot.GetLink() != nil {
		t.Errorf("written are %v, %v", boot.GetMounts(), boot.GetLink())
	}
}

func TestTheExitCodeOfTheSupervisorNamesTheMount(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	boot := new(guestv1.BootConfig)
	for _, name := range []string{"one", "two"} {
		boot.Mounts = append(boot.Mounts, &guestv1.HostMount{Source: "/host/" + name, Target: "/" + name})
	}
	if err := l.loop.makeGuestFolders("a"); err != nil {
		t.Fatal(err)
	}
	if err := saveBoot(l.loop.paths.GuestBoot("a"), boot); err != nil {
		t.Fatal(err)
	}
	said := func(code int) string {
		o := machine.Observation{Primary: &runtime.Container{State: runtime.StateExited, ExitCode: code}}
		ev := machine.Failure(agboxv1.ErrorReason_PRIMARY_EXITED, "as it was")
		return l.loop.withMountProblem("a", ev, o).GetSandboxPhase().GetErrorMessage()
	}
	for code, want := range map[int]string{
		filesystem.MountProblem{Index: 1}.ExitCode():               "The mount of /host/two at /two is not the file or folder",
		filesystem.MountProblem{Index: 0, Unseen: true}.ExitCode(): "The mount of /host/one at /one could not be compared",
		filesystem.MountProblem{Index: 500}.ExitCode():             "The mount of a path of the host is not",
		1:   "as it was",
		137: "as it was",
	} {
		if got := said(code); !strings.HasPrefix(got, want) {
			t.Errorf("exit code %d says %q, want %q", code, got, want)
		}
	}
}
