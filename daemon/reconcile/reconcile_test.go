package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
	"github.com/agbox/agbox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen. It is no deadline of
// the product: only a broken test runs into it.
const patience = 30 * time.Second

// guests stands for the supervisors: one answers while its container runs.
type guests struct {
	ledger *ledger.Ledger

	mu     sync.Mutex // guards what follows
	up     map[string]bool
	linked map[string]bool
	drops  int
	main   string // exec id of the container's own command; empty: none
	told   bool   // it was recorded
	hooks  []*agboxv1.CreateExecRequest
	held   bool // hooks do not end by themselves
	did    []string
	copy   func(context.Context) error // instead of copying something in
}

func (g *guests) Connect(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.up[id] {
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, "nobody answers")
	}
	g.linked[id] = true
	return nil
}

func (g *guests) Connected(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.linked[id] && g.up[id]
}

func (g *guests) Drop(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.linked[id] = false
	g.drops++
}

func (g *guests) Settle(ctx context.Context, id string) error {
	sb, _ := g.ledger.Sandbox(id)
	for exec := range sb.Execs {
		if err := g.ledger.EndExec(ctx, id, &agboxv1.ExecEventDetails{ExecId: exec, ExecState: agboxv1.ExecState_EXEC_STATE_FAILED}); err != nil {
			return err
		}
	}
	return nil
}

// CopyIn notes what it was asked for, and does what copy says.
func (g *guests) CopyIn(ctx context.Context, id string, _ hostfiles.Checker, copies []hostfiles.Copy, progress func(hostfiles.Copy, int64, int64)) error {
	g.mu.Lock()
	g.did = append(g.did, "copy "+copies[0].Source)
	do := g.copy
	g.mu.Unlock()
	progress(copies[0], 1, 1)
	if do == nil {
		return nil
	}
	return do(ctx)
}

func (g *guests) Release(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.did = append(g.did, "release")
	return nil
}

// RunHook accepts a hook and, unless it is held, ends it at once: with exit code 1
// when its command is "false".
func (g *guests) RunHook(ctx context.Context, req *agboxv1.CreateExecRequest, hook machine.Hook) error {
	again, err := g.ledger.StartHook(ctx, req, "boot", hook)
	if err != nil || again {
		return err
	}
	g.mu.Lock()
	g.hooks = append(g.hooks, req)
	g.did = append(g.did, "hook")
	held := g.held
	g.mu.Unlock()
	if held {
		return nil
	}
	return g.endHook(ctx, req)
}

func (g *guests) endHook(ctx context.Context, req *agboxv1.CreateExecRequest) error {
	d := &agboxv1.ExecEventDetails{ExecId: req.GetExecId(), ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}
	if req.GetCommand()[2] == "false" {
		d.ExitCode = 1
	}
	return g.ledger.EndExec(ctx, req.GetSandboxId(), d)
}

// ran are the hooks that were run, in their order.
func (g *guests) ran() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var commands []string
	for _, req := range g.hooks {
		commands = append(commands, req.GetCommand()[2])
	}
	return commands
}

func (g *guests) Main(id string) *ledger.MainExec {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.main == "" || g.told || !g.linked[id] || !g.up[id] {
		return nil
	}
	return &ledger.MainExec{
		Request: &agboxv1.CreateExecRequest{SandboxId: id, ExecId: g.main, Name: ledger.MainName, Command: []string{"serve"}},
		BootID:  "boot",
	}
}

func (g *guests) MainRecorded(*ledger.MainExec, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = true
}

func (g *guests) set(id string, up bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.up[id] = up
}

// life is one daemon life over an engine and a data directory that outlive it.
type life struct {
	t      *testing.T
	engine *runtimetest.Fake
	dir    string
	guests *guests
	ledger *ledger.Ledger
	loop   *Loop
	end    func()
}

func begin(t *testing.T, engine *runtimetest.Fake, dir string) *life {
	t.Helper()
	return beginWith(t, engine, dir, 20*time.Millisecond)
}

// beginWith is begin with a pause between two full looks that nothing else asks for.
func beginWith(t *testing.T, engine *runtimetest.Fake, dir string, resync time.Duration) *life {
	t.Helper()
	install := paths.Install{Data: dir, Config: dir, Run: dir}
	db, err := store.Open(t.Context(), store.Options{Path: install.Database(), Sentinel: install.Sentinel()})
	if err != nil {
		t.Fatal(err)
	}
	book, err := ledger.Open(t.Context(), db, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, engine: engine, dir: dir, ledger: book}
	l.guests = &guests{ledger: book, up: map[string]bool{}, linked: map[string]bool{}}
	l.loop = New(Options{
		Engine: engine, Guests: l.guests, Ledger: book, Paths: install,
		InstallID: db.InstallID(), Supervisor: filepath.Join(dir, "init"),
		Resync: resync, ReadyWithin: patience, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	set := func(s runtime.ContainerSpec, up bool) {
		if s.Role == runtime.RolePrimary {
			l.guests.set(s.SandboxID, up)
		}
	}
	engine.OnStart = func(s runtime.ContainerSpec) { set(s, true) }
	engine.OnEnd = func(s runtime.ContainerSpec) { set(s, false) }
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { l.loop.Run(ctx) })
	l.end = sync.OnceFunc(func() {
		cancel()
		loop.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(l.end)
	return l
}

// next ends this life and begins another; running containers still answer.
func (l *life) next() *life {
	l.t.Helper()
	l.end()
	up := l.guests.up
	n := begin(l.t, l.engine, l.dir)
	for id, is := range up {
		n.guests.set(id, is)
	}
	return n
}

func (l *life) create(id, image string) {
	l.t.Helper()
	if _, err := l.ledger.Create(l.t.Context(), id, &agboxv1.CreateSpec{Image: image}); err != nil {
		l.t.Fatal(err)
	}
	l.loop.Enqueue(id)
}

func (l *life) want(request func(context.Context, string) (ledger.Sandbox, error), id string) {
	l.t.Helper()
	if _, err := request(l.t.Context(), id); err != nil {
		l.t.Fatal(err)
	}
	l.loop.Interrupt(id)
}

func (l *life) stop(id string) {
	l.t.Helper()
	l.want(func(ctx context.Context, id string) (ledger.Sandbox, error) { return l.ledger.RequestStop(ctx, id, "") }, id)
}

// await waits until the sandbox is in the state and returns its record.
func (l *life) await(id string, state agboxv1.SandboxState) machine.Record {
	l.t.Helper()
	var r machine.Record
	l.until("state "+state.String(), func() bool {
		sb, living := l.ledger.Sandbox(id)
		if !living {
			sb, _ = l.ledger.Past(l.t.Context(), id)
		}
		r = sb.Record
		return r.State == state
	})
	return r
}

// until waits for a condition, looking again at every commit and often enough besides.
func (l *life) until(what string, ok func() bool) {
	l.t.Helper()
	deadline := time.After(patience)
	for {
		changed := l.ledger.Changed("")
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			l.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (l *life) objects() runtime.Inventory {
	l.t.Helper()
	inv, err := l.engine.Inventory(l.t.Context(), l.loop.InstallID)
	if err != nil {
		l.t.Fatal(err)
	}
	return inv
}

func (l *life) nothingLeft() {
	l.t.Helper()
	l.until("an engine without anything of ours", func() bool {
		inv := l.objects()
		return inv.Empty()
	})
}

func TestSandboxBecomesReadyStopsStartsAndIsRemoved(t *testing.T) {
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
	if got := l.engine.Calls(runtimetest.VerbEnsureContainer); got != 1 {
		t.Errorf("the container was made %d times", got)
	}
}

func TestUnknownImageFailsAndLeavesNothing(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", "no/such:image")
	r := l.await("a", machine.Failed)
	if r.ErrorReason != agboxv1.ErrorReason_IMAGE_NOT_FOUND.String() || r.ErrorMessage == "" {
		t.Errorf("reason %q, message %q", r.ErrorReason, r.ErrorMessage)
	}
	l.nothingLeft()
}

func TestASandboxThatFailsBeforeTheEngineHasAnythingLeavesNoFolder(t *testing.T) {
	engine := runtimetest.NewFake()
	engine.Fail(runtimetest.VerbEnsureNetwork, fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_NETWORK_POOL_EXHAUSTED, "No subnet is left."))
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Failed)
	l.until("the removal of the supervisor's folder", func() bool {
		_, err := os.Lstat(l.loop.Paths.Guest("a"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

func TestWithoutDiskSpaceASandboxFailsWithASentenceAndLeavesNothing(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	file := l.loop.Paths.GuestBoot("a")
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

func TestARemovalThatACrashCutShortTakesTheFolderToo(t *testing.T) {
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
	if _, err := os.Lstat(n.loop.Paths.Guest("a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the supervisor's folder of a removed sandbox: %v", err)
	}
}

func TestDeleteDuringPullGivesUpThePull(t *testing.T) {
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

func TestDeathBehindOurBackIsSeen(t *testing.T) {
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

func TestSandboxThatWasBeingMadeFailsAfterRestart(t *testing.T) {
	engine := runtimetest.NewFake()
	engine.Hang(runtimetest.VerbEnsureImage)
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.until("a network", func() bool { return len(l.objects().Networks) == 1 })
	n := l.next()
	n.await("a", machine.Failed)
	n.nothingLeft()
}

func TestWishesSurviveACrash(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	for _, id := range []string{"stop", "delete"} {
		l.create(id, runtimetest.FakeImage)
		l.await(id, machine.Ready)
	}
	// The wishes are recorded, and nobody is told before the crash.
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

func TestEngineOutageIsSaidAndOutlived(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")

	l.engine.GoDown()
	l.until("the outage", func() bool { return l.loop.Health().Err != nil })
	if c := l.loop.Condition(sb); c.Degraded == "" {
		t.Error("the sandbox is not degraded")
	}
	if err := l.loop.Probe(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("Probe says %v", err)
	}
	l.engine.ComeBack(true)
	l.until("well again", func() bool { return l.loop.Condition(sb).Degraded == "" })
	if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Ready {
		t.Errorf("the sandbox is %s after the outage", sb.State)
	}

	l.engine.GoDown()
	l.until("degraded", func() bool { return l.loop.Condition(sb).Degraded != "" })
	l.engine.ComeBack(false)
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_ENGINE_RESTARTED.String() {
		t.Errorf("reason is %s", r.ErrorReason)
	}
}

func TestWhatEndsOutsideAnOutageIsNotBlamedOnTheEngine(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	l.engine.GoDown()
	l.until("degraded", func() bool { return l.loop.Condition(sb).Degraded != "" })
	l.engine.ComeBack(true)
	l.until("well again", func() bool { return l.loop.Condition(sb).Degraded == "" })
	l.engine.Kill(l.objects().Containers[0].ID, 9)
	l.guests.set("a", false)
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_PRIMARY_EXITED.String() {
		t.Errorf("reason is %s", r.ErrorReason)
	}
}

func TestAnEngineThatComesBackIsAskedAgainWhoItIs(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.until("the engine's version", func() bool { return l.engine.Calls(runtimetest.VerbInfo) > 0 })
	for range 3 {
		before := l.engine.Calls(runtimetest.VerbInfo)
		l.engine.Restart(true) // too short for a call to fail; the stream breaks
		l.until("the engine's version again", func() bool { return l.engine.Calls(runtimetest.VerbInfo) > before })
	}
}

func TestOneHungSandboxDelaysNoOther(t *testing.T) {
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
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	image, err := l.engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: runtimetest.FakeImage}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spoof := runtime.Identity{InstallID: l.loop.InstallID, SandboxID: "a", Nonce: "guessed", Role: runtime.RolePrimary}
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
	for _, tc := range []struct {
		entrypoint, cmd, spec []string
		want                  int
	}{
		{nil, []string{"sh"}, nil, 0},
		{nil, []string{"/bin/bash", "-l"}, nil, 0},
		{nil, []string{"bash", "-c", "serve"}, nil, 3},
		{nil, []string{"sh", "/start.sh"}, nil, 2},
		{[]string{"/entry"}, []string{"sh"}, nil, 2},
		{nil, nil, nil, 0},
		{nil, []string{"redis-server"}, []string{"sleep", "9"}, 2},
	} {
		got := mainCommand(&agboxv1.CreateSpec{Command: tc.spec}, runtime.Image{Entrypoint: tc.entrypoint, Cmd: tc.cmd})
		if len(got) != tc.want {
			t.Errorf("entrypoint %q, command %q, spec %q: runs %q", tc.entrypoint, tc.cmd, tc.spec, got)
		}
	}
}

func TestTransientErrorsAreRetriedAndOthersAreNot(t *testing.T) {
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
