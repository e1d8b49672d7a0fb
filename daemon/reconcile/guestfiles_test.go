package reconcile

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
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
			if again := l.boot("a"); !reflect.DeepEqual(again, boot) {
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
	if err := boot.UnmarshalVT(raw); err != nil {
		l.t.Fatal(err)
	}
	return boot
}

func TestASandboxBecomesReadyTogetherWithItsMainCommand(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.guests.main = "main-a"
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	// The record that shows READY also has the command: it is one commit.
	if sb, _ := l.ledger.Sandbox("a"); !sb.Execs["main-a"].Main || sb.InUse() {
		t.Errorf("the execs are %v", sb.Execs)
	}
	l.stop("a")
	if r := l.await("a", machine.Stopped); len(r.Execs) != 0 {
		t.Errorf("after the stop the execs are %v", r.Execs)
	}
}

// The supervisor counts its status files, which retention removes.
func TestAStartSaysWhichRunsOfTheMainCommandAreRecorded(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	for run := range uint32(3) {
		l.guests.mu.Lock()
		l.guests.main, l.guests.told = ids.MainRun("main-a", run+1), false
		l.guests.mu.Unlock()
		if run == 0 {
			l.create("a", runtimetest.FakeImage)
		} else {
			l.want(l.ledger.RequestResume, "a")
		}
		l.await("a", machine.Ready)
		if got := max(1, l.boot("a").GetMainRun()); got != run+1 {
			t.Errorf("start %d begins with run %d", run+1, got)
		}
		l.stop("a")
		l.await("a", machine.Stopped)
	}
}

func TestAMainCommandThatAnEarlierDaemonDidNotRecordIsRecorded(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	before := l.await("a", machine.Ready)
	n := l.next()
	n.guests.mu.Lock()
	n.guests.main = "main-a"
	n.guests.mu.Unlock()
	n.loop.Enqueue("a")
	n.until("the record of the command", func() bool {
		sb, _ := n.ledger.Sandbox("a")
		return sb.Execs["main-a"].Main
	})
	if sb, _ := n.ledger.Sandbox("a"); sb.LastSequence != before.LastSequence+1 || sb.State != machine.Ready {
		t.Errorf("the record is %+v", sb.Record)
	}
}

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

var errNoSource = errors.New("bind source path does not exist")

func TestARemovedSupervisorIsMadeAgainForAStart(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir(), func(o *Options) {
		install := o.InstallSupervisor
		o.InstallSupervisor = func() (string, error) {
			engine.Fail(runtimetest.VerbStartContainer, nil)
			return install()
		}
	})
	if _, err := l.loop.opts.InstallSupervisor(); err != nil {
		t.Fatal(err)
	}
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.stop("a")
	l.await("a", machine.Stopped)
	if err := os.Remove(l.loop.opts.Supervisor); err != nil {
		t.Fatal(err)
	}
	engine.Fail(runtimetest.VerbStartContainer, errNoSource)
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	if err := os.Remove(l.loop.opts.Supervisor); err != nil {
		t.Fatal(err)
	}
	l.create("b", runtimetest.FakeImage)
	l.await("b", machine.Ready)
	if _, err := os.Stat(l.loop.opts.Supervisor); err != nil {
		t.Errorf("a new sandbox has a supervisor without a file: %v", err)
	}
}

func TestAStartWithoutItsSupervisorNamesTheRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		// next is added to the path of the supervisor of the next daemon, installed to
		// the path of the one that it can install.
		next, installed string
		err             error
		says            string
	}{
		{"", "", errors.New("no space"), "cannot be made again (no space)"},
		{"", "2", nil, "run \"agbox daemon upgrade\""},
		{"2", "2", nil, "remove the sandbox and create it again"},
	} {
		engine := runtimetest.NewFake()
		l := begin(t, engine, t.TempDir())
		if _, err := l.loop.opts.InstallSupervisor(); err != nil {
			t.Fatal(err)
		}
		l.create("a", runtimetest.FakeImage)
		l.await("a", machine.Ready)
		l.stop("a")
		l.await("a", machine.Stopped)
		removed := l.loop.opts.Supervisor
		n := l.next(func(o *Options) {
			o.Supervisor += c.next
			o.InstallSupervisor = func() (string, error) { return removed + c.installed, c.err }
		})
		if err := os.Remove(removed); err != nil {
			t.Fatal(err)
		}
		engine.Fail(runtimetest.VerbStartContainer, errNoSource)
		n.want(n.ledger.RequestResume, "a")
		r := n.await("a", machine.Failed)
		if r.ErrorReason != agboxv1.ErrorReason_HOST_PATH_UNUSABLE.String() || !strings.Contains(r.ErrorMessage, removed) || !strings.Contains(r.ErrorMessage, c.says) {
			t.Errorf("it failed with %s: %s, want %q", r.ErrorReason, r.ErrorMessage, c.says)
		}
	}
}
