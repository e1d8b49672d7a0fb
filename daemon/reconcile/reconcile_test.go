package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestSandboxBecomesReadyStopsStartsAndIsRemoved(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.stop("a")
	l.await("a", machine.Stopped)
	if n := len(l.objects().Containers); n != 1 {
		t.Errorf("a stopped sandbox has %d containers, want 1", n)
	}
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	l.guests.mu.Lock()
	if l.guests.drops != 2 {
		t.Errorf("two starts gave up %d links of the life before", l.guests.drops)
	}
	l.guests.mu.Unlock()
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	l.nothingLeft()
	l.until("the last link to be forgotten", func() bool {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		return l.guests.drops == 3
	})
	if got := l.engine.Calls(runtimetest.VerbEnsureContainer); got != 1 {
		t.Errorf("the container was made %d times", got)
	}
}

func TestUnknownImageFailsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", "no/such:image")
	r := l.await("a", machine.Failed)
	if r.ErrorReason != agboxv1.ErrorReason_IMAGE_NOT_FOUND.String() || r.ErrorMessage == "" {
		t.Errorf("reason %q, message %q", r.ErrorReason, r.ErrorMessage)
	}
	l.nothingLeft()
}

func TestASandboxThatFailsBeforeTheEngineHasAnythingLeavesNoFolder(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	engine.Fail(runtimetest.VerbEnsureNetwork, fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_NETWORK_POOL_EXHAUSTED, "No subnet is left."))
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Failed)
	l.until("the removal of the supervisor's folder", func() bool {
		_, err := os.Lstat(l.loop.paths.Guest("a"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

func TestWithoutDiskSpaceASandboxFailsWithASentenceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	file := l.loop.paths.GuestBoot("a")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(filepath.Dir(file), ".boot.pb.new")); err != nil {
		t.Fatal(err)
	}
	l.create("a", runtimetest.FakeImage)
	r := l.await("a", machine.Failed)
	if r.ErrorReason != agboxv1.ErrorReason_FILE_SYSTEM_FULL.String() || !strings.HasPrefix(r.ErrorMessage, "No disk space is left in "+l.dir) {
		t.Errorf("the reason is %s: %s", r.ErrorReason, r.ErrorMessage)
	}
	l.nothingLeft()
}

// TestASandboxThatRevivesItselfWaitsForDiskSpace: nobody asked for the start, so a full disk must not
// make it FAILED for ever.
func TestASandboxThatRevivesItselfWaitsForDiskSpace(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createSpec("a", &agboxv1.CreateSpec{Revival: agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE})
	l.await("a", machine.Ready)
	l.engine.Fail(runtimetest.VerbStartContainer, fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_FILE_SYSTEM_FULL, "No room."))
	for _, c := range l.engine.Containers() {
		l.engine.Kill(c.ID, 9)
	}
	l.until("several attempts", func() bool {
		sb, _ := l.ledger.Sandbox("a")
		if sb.State == machine.Failed {
			t.Fatalf("it is FAILED: %s", sb.ErrorMessage)
		}
		return l.engine.Calls(runtimetest.VerbStartContainer) >= 4
	})
	l.engine.Fail(runtimetest.VerbStartContainer, nil)
	l.await("a", machine.Ready)
}

func TestARemovalThatACrashCutShortTakesTheFolderToo(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.end()
	// As after a crash between the last call to the engine and the removal of the folder.
	for _, c := range l.engine.Containers() {
		l.engine.Vanish(c.ID)
	}
	for _, n := range l.engine.Networks() {
		if err := l.engine.RemoveNetwork(t.Context(), n.ID); err != nil {
			t.Fatal(err)
		}
	}
	n := l.next()
	n.want(n.ledger.RequestDelete, "a")
	n.await("a", machine.Deleted)
	if _, err := os.Lstat(n.loop.paths.Guest("a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the supervisor's folder of a removed sandbox: %v", err)
	}
}

func TestDeleteDuringPullGivesUpThePull(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	release := engine.Hang(runtimetest.VerbEnsureImage)
	defer release()
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.until("the pull", func() bool { return engine.Calls(runtimetest.VerbEnsureImage) > 0 })
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	l.nothingLeft()
}

func TestStopDuringCreateEndsStopped(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	release := engine.Hang(runtimetest.VerbStartContainer)
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.until("the start", func() bool { return engine.Calls(runtimetest.VerbStartContainer) > 0 })
	l.stop("a")
	release()
	l.await("a", machine.Stopped)
}

func TestLostRepliesMakeNothingTwice(t *testing.T) {
	t.Parallel()
	for _, verb := range []runtimetest.Verb{
		runtimetest.VerbEnsureNetwork, runtimetest.VerbEnsureContainer, runtimetest.VerbStartContainer,
	} {
		t.Run(string(verb), func(t *testing.T) {
			engine := runtimetest.NewFake()
			engine.LoseReply(verb)
			l := begin(t, engine, t.TempDir())
			l.create("a", runtimetest.FakeImage)
			l.await("a", machine.Ready)
			if inv := l.objects(); len(inv.Containers) != 1 || len(inv.Networks) != 1 {
				t.Errorf("the engine has %d containers and %d networks", len(inv.Containers), len(inv.Networks))
			}
		})
	}
}

// An engine may make a network for a killed daemon after the next daemon has made its
// own.
func TestANetworkThatTheEngineMakesLateIsRemoved(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createServed("a", served())
	l.heal()
	l.await("a", machine.Ready)
	l.awaitService("a", "extra", machine.Up)
	used := l.objects().Networks[0]
	late := l.engine.AddForeignNetwork(used.Name, used.Identity)
	l.until("its removal", func() bool { return len(l.objects().Networks) == 1 })
	if left := l.objects().Networks[0]; left.ID != used.ID {
		t.Errorf("the network %s is left, and %s is removed, which the containers were made for", late, used.ID)
	}
	if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Ready {
		t.Errorf("the sandbox is %s", sb.State)
	}
}

func TestDeathBehindOurBackIsSeen(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*runtimetest.Fake, string){
		agboxv1.ErrorReason_PRIMARY_EXITED.String():  func(f *runtimetest.Fake, id string) { f.Kill(id, 9) },
		agboxv1.ErrorReason_PRIMARY_MISSING.String(): func(f *runtimetest.Fake, id string) { f.Vanish(id) },
	} {
		t.Run(name, func(t *testing.T) {
			l := begin(t, runtimetest.NewFake(), t.TempDir())
			l.create("a", runtimetest.FakeImage)
			l.await("a", machine.Ready)
			harm(l.engine, l.objects().Containers[0].ID)
			l.guests.set("a", false)
			if r := l.await("a", machine.Failed); r.ErrorReason != name {
				t.Errorf("reason is %s, want %s", r.ErrorReason, name)
			}
		})
	}
}

func TestRestartRestoresWhatWas(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	for _, id := range []string{"runs", "stopped", "dies"} {
		l.create(id, runtimetest.FakeImage)
		l.await(id, machine.Ready)
	}
	l.stop("stopped")
	l.await("stopped", machine.Stopped)
	l.end()
	for _, c := range l.objects().Containers {
		if c.SandboxID == "dies" {
			l.engine.Kill(c.ID, 1)
		}
	}
	n := l.next()
	if r := n.await("dies", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_PRIMARY_EXITED.String() {
		t.Errorf("reason is %s", r.ErrorReason)
	}
	n.await("runs", machine.Ready)
	n.await("stopped", machine.Stopped)
	n.until("the link", func() bool { return n.guests.Connected("runs") })
}

// beingMade is a life that ends while the image of a new sandbox is pulled.
func beingMade(t *testing.T) *life {
	t.Helper()
	engine := runtimetest.NewFake()
	release := engine.Hang(runtimetest.VerbEnsureImage)
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.until("a network", func() bool { return len(l.objects().Networks) == 1 })
	l.end()
	release()
	return l
}

func TestASandboxThatWasBeingMadeIsMadeByTheNextDaemon(t *testing.T) {
	t.Parallel()
	n := beingMade(t).next()
	n.await("a", machine.Ready)
	if inv := n.objects(); len(inv.Containers) != 1 || len(inv.Networks) != 1 {
		t.Errorf("the engine has %d containers and %d networks", len(inv.Containers), len(inv.Networks))
	}
}

func TestASandboxThatWasBeingMadeFailsAfterARestartIfItIsToldTo(t *testing.T) {
	t.Parallel()
	n := beingMade(t).next(func(o *Options) { o.PendingRecovery = machine.PendingFail })
	if r := n.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_PRIMARY_MISSING.String() {
		t.Errorf("the reason is %s: %s", r.ErrorReason, r.ErrorMessage)
	}
	n.nothingLeft()
}

func TestWishesSurviveACrash(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	for _, id := range []string{"stop", "delete"} {
		l.create(id, runtimetest.FakeImage)
		l.await(id, machine.Ready)
	}
	// The requests are recorded, and the daemon crashes before it tells the loop.
	if _, err := l.ledger.RequestStop(t.Context(), "stop", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := l.ledger.RequestDelete(t.Context(), "delete"); err != nil {
		t.Fatal(err)
	}
	n := l.next()
	n.await("stop", machine.Stopped)
	n.await("delete", machine.Deleted)
}

func TestOneHungSandboxDelaysNoOther(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	release := engine.Hang(runtimetest.VerbStopContainer)
	defer release()
	l := begin(t, engine, t.TempDir())
	l.create("hung", runtimetest.FakeImage)
	l.await("hung", machine.Ready)
	l.stop("hung")
	l.until("the stop", func() bool { return engine.Calls(runtimetest.VerbStopContainer) > 0 })
	l.create("b", runtimetest.FakeImage)
	l.await("b", machine.Ready)
}

func TestSandboxesThatTakeTheirTimeToStopDelayNoOther(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	for i := range engineSlots {
		l.create(fmt.Sprint("slow", i), runtimetest.FakeImage)
	}
	for i := range engineSlots {
		l.await(fmt.Sprint("slow", i), machine.Ready)
	}
	release := engine.Hang(runtimetest.VerbStopContainer)
	defer release()
	for i := range engineSlots {
		l.stop(fmt.Sprint("slow", i))
	}
	l.until("all stops", func() bool { return engine.Calls(runtimetest.VerbStopContainer) == engineSlots })
	l.create("b", runtimetest.FakeImage)
	l.await("b", machine.Ready)
}

func TestForeignObjectsWithOurLabelsAreIgnored(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	image, err := l.engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: runtimetest.FakeImage}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spoof := runtime.Identity{InstallID: l.loop.opts.InstallID, SandboxID: "a", Nonce: "guessed", Role: runtime.RolePrimary}
	if _, err := l.engine.EnsureContainer(t.Context(), runtime.ContainerSpec{Identity: spoof, Name: "spoof", ImageID: image.ID}); err != nil {
		t.Fatal(err)
	}
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	left := l.objects().Containers
	if len(left) != 1 || left[0].Name != "spoof" {
		t.Errorf("left in the engine: %v, want the spoof alone", left)
	}
}

func TestMainCommandIsOnlyWhatIsWorthRunning(t *testing.T) {
	for _, tc := range []struct{ imageEntrypoint, imageCommand, entrypoint, command, want string }{
		{"", "sh", "", "", ""},
		{"", "/bin/bash -l", "", "", ""},
		{"", "bash -c serve", "", "", "bash -c serve"},
		{"", "sh /start.sh", "", "", "sh /start.sh"},
		{"/entry", "sh", "", "", "/entry sh"},
		{"", "", "", "", ""},
		{"", "redis-server", "", "sleep 9", "sleep 9"},
		// As with Docker: a command is the argument of the entrypoint, and an entrypoint
		// replaces both.
		{"/entry", "sh", "", "sleep 9", "/entry sleep 9"},
		{"/entry -x", "sh", "/mine -y", "", "/mine -y"},
		{"/entry", "sh", "/mine", "sleep 9", "/mine sleep 9"},
		{"/entry", "sh", `""`, "sleep 9", "sleep 9"},
		{"", "sh", "", "sh", "sh"},
		{"", "sh", "bash", "", "bash"},
	} {
		spec := &agboxv1.CreateSpec{Entrypoint: strings.Fields(tc.entrypoint), Command: strings.Fields(tc.command)}
		if tc.entrypoint == `""` {
			spec.Entrypoint = []string{""}
		}
		got := mainCommand(spec, runtime.Image{Entrypoint: strings.Fields(tc.imageEntrypoint), Cmd: strings.Fields(tc.imageCommand)})
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%+v: runs %q", tc, got)
		}
	}
}

func TestTransientErrorsAreRetriedAndOthersAreNot(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "away"):     true,
		fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED, "broke off"): false,
		fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "no image"):       false,
		context.DeadlineExceeded: true,
		errors.New("who knows"):  false,
	} {
		if got := retryable(err); got != want {
			t.Errorf("retryable(%v) = %v", err, got)
		}
	}
}

// TestNothingIsKeptInMemoryOfSandboxesThatAreGone checks every map of a Loop, so that it
// also covers maps that are added later.
func TestNothingIsKeptInMemoryOfSandboxesThatAreGone(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	for i := range 10 {
		id := fmt.Sprintf("s%d", i)
		l.create(id, runtimetest.FakeImage)
		l.await(id, agboxv1.SandboxState_SANDBOX_STATE_READY)
		// An engine reports the end of containers and networks late.
		told := func(action string) {
			for _, object := range []string{"container-", "network-"} {
				l.loop.hint(runtime.Event{Identity: runtime.Identity{SandboxID: id}, Action: action, ObjectID: object + id})
			}
		}
		told("disconnect")
		l.want(l.ledger.RequestDelete, id)
		l.await(id, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
		told("destroy")
	}
	l.nothingLeft()
	l.until("a look at the empty engine", func() bool {
		l.loop.mu.Lock()
		defer l.loop.mu.Unlock()
		return len(l.loop.inventory) == 0
	})
	l.end()
	v := reflect.ValueOf(l.loop).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Map && f.Len() > 0 {
			t.Errorf("%s holds %d entries: %v", v.Type().Field(i).Name, f.Len(), f.MapKeys())
		}
	}
}

// The clock is that of the synctest bubble.
func TestAPrimaryThatExitsAtOnceIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := beginWith(t, runtimetest.NewFake(), t.TempDir(), time.Hour)
		defer l.end()
		l.engine.OnStart = func(runtime.ContainerSpec) { l.engine.Kill(l.engine.Containers()[0].ID, 3) }
		begun := time.Now()
		l.create("a", runtimetest.FakeImage)
		if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_PRIMARY_EXITED.String() {
			t.Errorf("the reason is %s: %s", r.ErrorReason, r.ErrorMessage)
		}
		if took := time.Since(begun); took >= connectTimeout {
			t.Errorf("the failure came after %v", took)
		}
	})
}
