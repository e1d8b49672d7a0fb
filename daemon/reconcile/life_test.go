package reconcile

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
	"github.com/agbox/agbox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an event. It is not a deadline of the product:
// only a broken test reaches it.
const patience = 30 * time.Second

// guests simulates the supervisors: one answers while its container runs.
type guests struct {
	ledger *ledger.Ledger

	mu     sync.Mutex // guards the fields below
	up     map[string]bool
	linked map[string]bool
	strays map[string]bool // whose processes live whatever the engine says
	keeps  map[string]bool // execs that a supervisor has although they were lost
	sought map[string]bool // sandboxes in which they were looked for
	drops  int
	failed error  // of the last call of Fail
	lost   error  // why nobody answers, instead of the usual error
	logs   error  // what is wrong with the log folders
	ended  bool   // the supervisor of the newest link has
	main   string // exec id of the container's own command; empty: none
	told   bool   // it was recorded
	// boot and env are what the last call of Configure told.
	boot *guestv1.BootConfig
	env  []string
	deaf int // calls of Configure that fail
	// unnamed is the error of SetHostname.
	unnamed error
	hooks   []*agboxv1.CreateExecRequest
	held    bool // hooks do not end by themselves
	did     []string
	copy    func(context.Context) error // runs instead of copying
}

func (g *guests) Connect(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost != nil {
		return g.lost
	}
	if !g.up[id] {
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, "nobody answers")
	}
	g.linked[id] = true
	return nil
}

func (g *guests) Connected(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.linked[id] && g.up[id] && g.lost == nil
}

func (g *guests) Fail(_ string, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = why
}

// Lives: without a simulated socket, the supervisor of the newest link lives unless it ended.
func (g *guests) Lives(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strays[id] || g.lost != nil && !g.ended
}

func (g *guests) SetHostname(_, _, name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.did = append(g.did, "call "+name)
	return g.unnamed
}

func (g *guests) End(_ context.Context, id string, _ time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.strays[id] {
		g.strays[id], g.up[id] = false, false
		g.did = append(g.did, "end "+id)
	}
	return nil
}

func (g *guests) CheckLogs(string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.logs
}

func (g *guests) Discard(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.linked[id] = false
	g.did = append(g.did, "discard")
}

func (g *guests) Drop(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.linked[id] = false
	delete(g.sought, id)
	g.drops++
}

func (g *guests) EndAll(ctx context.Context, id string, execs map[string]machine.Exec, missing bool) error {
	for exec := range execs {
		if err := g.ledger.EndExec(ctx, id, &agboxv1.ExecEventDetails{ExecId: exec, ExecState: agboxv1.ExecState_EXEC_STATE_FAILED, MayReturn: missing}); err != nil {
			return err
		}
	}
	return nil
}

func (g *guests) LostDue(id string) bool {
	sb, _ := g.ledger.Sandbox(id)
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(sb.Lost) > 0 && !(g.linked[id] && g.sought[id])
}

func (g *guests) FindExecs(ctx context.Context, id string) error {
	sb, _ := g.ledger.Sandbox(id)
	g.mu.Lock()
	var found []string
	for exec := range sb.Lost {
		if g.keeps[exec] {
			found = append(found, exec)
		}
	}
	g.sought[id] = true
	g.did = append(g.did, "find "+id)
	g.mu.Unlock()
	return g.ledger.FindExecs(ctx, id, found)
}

// CopyIn records its arguments and calls copy.
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

func (g *guests) Configure(_ context.Context, id string, boot *guestv1.BootConfig, env []string, _ string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.linked[id] {
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE, "nobody is linked")
	}
	if g.deaf > 0 {
		g.deaf--
		g.linked[id] = false // the link is held
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE, "it does not answer in time")
	}
	g.did, g.boot, g.env = append(g.did, "configure"), boot, env
	return nil
}

func (g *guests) Release(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.did = append(g.did, "release")
	return nil
}

// RunHook accepts a hook. Unless hooks are held, it ends the hook at once, with exit code
// 1 if the command is "false".
func (g *guests) RunHook(ctx context.Context, req *agboxv1.CreateExecRequest, hook machine.Hook) error {
	again, err := g.ledger.AcceptHook(ctx, req, "boot", hook)
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

// ran returns the hooks that were run, in order.
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

// life is one life of a daemon, with an engine and a data directory that outlive it.
type life struct {
	t      *testing.T
	engine *runtimetest.Fake
	dir    string
	guests *guests
	ledger *ledger.Ledger
	loop   *Loop
	room   *retention.Room
	end    func()
}

func begin(t *testing.T, engine *runtimetest.Fake, dir string, options ...func(*Options)) *life {
	t.Helper()
	return beginWith(t, engine, dir, 20*time.Millisecond, options...)
}

// beginWith is begin with a given pause between two full looks.
func beginWith(t *testing.T, engine *runtimetest.Fake, dir string, resync time.Duration, options ...func(*Options)) *life {
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
	l.guests = &guests{ledger: book, up: map[string]bool{}, linked: map[string]bool{}, strays: map[string]bool{}, keeps: map[string]bool{}, sought: map[string]bool{}}
	l.room = retention.NewRoom(retention.RoomOptions{Ledger: book, Paths: install, Stopped: func(id string) { l.loop.Interrupt(id) }, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	o := Options{
		Room: l.room, MaxSandboxLog: 1 << 20, MaxFolderFiles: 20,
		Engine: engine, Fence: engine.Fence, Links: l.guests, Execs: l.guests, Files: l.guests, Ledger: book, Paths: install,
		InstallID: db.InstallID(), Identities: db, Supervisor: filepath.Join(dir, "init"),
		InstallSupervisor: func() (string, error) {
			file := filepath.Join(dir, "init")
			return file, os.WriteFile(file, nil, 0o555)
		},
		Resync: resync, ReadyWithin: patience, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}
	for _, option := range options {
		option(&o)
	}
	l.loop = New(o)
	set := func(s runtime.ContainerSpec, up bool) {
		if s.Role == runtime.RolePrimary {
			l.guests.set(s.SandboxID, up)
		}
	}
	engine.OnStart = func(s runtime.ContainerSpec) { set(s, true); playReclaimer(engine, s) }
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

// next ends this life and begins another one. Running containers still answer.
func (l *life) next(options ...func(*Options)) *life {
	l.t.Helper()
	l.end()
	up := l.guests.up
	n := begin(l.t, l.engine, l.dir, options...)
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

// until waits for a condition. It checks at every commit, and periodically.
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
	inv, err := l.engine.Inventory(l.t.Context(), l.loop.opts.InstallID)
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
