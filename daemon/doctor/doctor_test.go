package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
	"github.com/agbox/agbox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait. Only a broken test reaches it.
const patience = 30 * time.Second

// guests simulates the links. There is a link if it was made and not cut.
type guests struct {
	mu     sync.Mutex // guards the fields below
	linked map[string]bool
	// cut says why a supervisor can no longer be reached, logs why it cannot write
	// its logs. broken says how it has broken links, although it greets.
	cut, logs, broken map[string]error
}

func (g *guests) Lives(string) bool { return false }

func (g *guests) SetHostname(string, string, string) error { return nil }

func (g *guests) End(context.Context, string, time.Duration) error { return nil }

func (g *guests) Connect(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cut[id] == nil {
		g.linked[id] = true
	}
	return g.cut[id]
}

func (g *guests) Connected(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.linked[id] && g.cut[id] == nil
}

func (g *guests) Broken(id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broken[id]
}

func (g *guests) CheckLogs(id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.logs[id]
}

func (g *guests) Fail(string, error) {}

func (g *guests) Drop(string) {}

func (g *guests) Discard(string) {}

func (g *guests) EndAll(context.Context, string, map[string]machine.Exec, bool) error { return nil }

func (g *guests) LostDue(string) bool { return false }

func (g *guests) FindExecs(context.Context, string) error { return nil }

func (g *guests) CopyIn(context.Context, string, hostfiles.Checker, []hostfiles.Copy, func(hostfiles.Copy, int64, int64)) error {
	return nil
}

func (g *guests) Configure(context.Context, string, *guestv1.BootConfig, []string, string) error {
	return nil
}

func (g *guests) Release(context.Context, string) error { return nil }

func (g *guests) RunHook(context.Context, *agboxv1.CreateExecRequest, machine.Hook) error { return nil }

func (g *guests) Main(string) *ledger.MainExec { return nil }

func (g *guests) MainRecorded(*ledger.MainExec, bool) {}

func (g *guests) lose(id string, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut[id] = why
}

// life is one life of a daemon, as far as the doctor needs it.
type life struct {
	t      *testing.T
	engine *runtimetest.Fake
	paths  paths.Install
	db     *store.Store
	ledger *ledger.Ledger
	loop   *reconcile.Loop
	guests *guests
	doctor *Doctor
	end    func()
}

// begin opens the install. The loop does nothing before awake.
func begin(t *testing.T, engine *runtimetest.Fake, dir string) *life {
	t.Helper()
	install := paths.Install{Data: dir, Config: dir, Run: dir}
	db, err := store.Open(t.Context(), store.Options{Path: install.Database(), Sentinel: install.Sentinel()})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	book, err := ledger.Open(t.Context(), db, time.Now, quiet)
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, engine: engine, paths: install, db: db, ledger: book}
	l.guests = &guests{linked: map[string]bool{}, cut: map[string]error{}}
	l.loop = reconcile.New(reconcile.Options{
		Room:   retention.NewRoom(retention.RoomOptions{Ledger: book, Paths: install, Now: time.Now, Log: quiet}),
		Engine: engine, Fence: engine.Fence, Links: l.guests, Execs: l.guests, Files: l.guests, Ledger: book, Paths: install, InstallID: db.InstallID(), Identities: db,
		Supervisor: filepath.Join(dir, "init"), InstallSupervisor: func() (string, error) { return filepath.Join(dir, "init"), nil },
		Resync: time.Hour, ReadyWithin: patience, Now: time.Now, Log: quiet,
	})
	l.doctor = New(Options{
		Polling: func() error { return nil },
		Engine:  engine, Loop: l.loop, Links: l.guests, Greet: l.guests.Connect,
		Ledger: book, Paths: install, InstallID: db.InstallID(), Log: quiet,
	})
	l.end = sync.OnceFunc(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { l.end() })
	return l
}

// awake runs the loop until the returned function is called.
func (l *life) awake() (asleep func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { l.loop.Run(ctx) })
	asleep = sync.OnceFunc(func() {
		cancel()
		loop.Wait()
	})
	before := l.end
	l.end = func() {
		asleep()
		before()
	}
	return asleep
}

func (l *life) create(id, name string) ledger.Sandbox {
	l.t.Helper()
	spec := &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Name: name, Envs: map[string]string{"A": "b", "BLANK": "", "GOGC": "50"}}
	if _, err := l.ledger.Create(l.t.Context(), id, spec); err != nil {
		l.t.Fatal(err)
	}
	l.loop.Enqueue(id)
	sb := l.await(id, machine.Ready)
	l.makeSocket(id)
	return sb
}

// makeSocket makes the socket that the supervisor of a sandbox would listen on.
func (l *life) makeSocket(id string) {
	l.t.Helper()
	if err := unix.Mknod(filepath.Join(l.paths.GuestLink(id), paths.LinkSocket), unix.S_IFSOCK|0o600, 0); err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) await(id string, state agboxv1.SandboxState) ledger.Sandbox {
	l.t.Helper()
	deadline := time.After(patience)
	for {
		changed := l.ledger.Changed(id)
		sb, _ := l.ledger.Sandbox(id)
		if sb.State == state {
			return sb
		}
		select {
		case <-changed:
		case <-deadline:
			l.t.Fatalf("sandbox %s never became %s", id, state)
		}
	}
}

func (l *life) examine(fix bool) *agboxv1.DoctorResponse {
	l.t.Helper()
	out, err := l.doctor.Examine(l.t.Context(), fix)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// short formats a finding: action and object.
func short(f *agboxv1.DoctorFinding) string {
	text := strings.TrimPrefix(f.GetAction().String(), "DOCTOR_ACTION_") + " " + strings.TrimPrefix(f.GetKind().String(), "DOCTOR_KIND_")
	if f.GetSandboxId() != "" {
		text += " " + f.GetSandboxId()
	}
	if f.GetNeedsPerson() {
		text += " !"
	}
	if f.GetDone() {
		text += " done"
	}
	if f.GetError() != "" {
		text += " error"
	}
	return text
}

// wantFindings compares findings, in order, in their short form.
func wantFindings(t *testing.T, out *agboxv1.DoctorResponse, want ...string) {
	t.Helper()
	var got []string
	for _, f := range out.GetFindings() {
		got = append(got, short(f))
		if why := f.GetWhy(); !strings.HasSuffix(why, ".") || strings.Contains(why, "..") || why[0] < 'A' || why[0] > 'Z' {
			t.Errorf("%s: %q is no sentence", short(f), why)
		}
	}
	if a, b := strings.Join(got, "\n"), strings.Join(want, "\n"); a != b {
		t.Errorf("the findings are:\n%s\nwant:\n%s", a, b)
	}
}

func why(t *testing.T, out *agboxv1.DoctorResponse, of string) string {
	t.Helper()
	for _, f := range out.GetFindings() {
		if short(f) == of {
			return f.GetWhy()
		}
	}
	t.Fatalf("there is no finding %q", of)
	return ""
}

func TestAnInstallInOrderIsLeftAlone(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.awake()
	l.create("a", "demo")
	l.engine.AddForeign("theirs", runtime.Identity{InstallID: "another"})
	l.engine.AddForeign("nobodys", runtime.Identity{})
	for _, fix := range []bool{false, true} {
		out := l.examine(fix)
		wantFindings(t, out, "LEAVE DATABASE", "LEAVE SANDBOX_RECORD a", "LEAVE CONTAINER a", "LEAVE NETWORK a")
		if out.GetOtherInstallContainers() != 1 || out.GetInstallId() != l.db.InstallID() || out.GetOffline() {
			t.Errorf("the answer is %v", out)
		}
	}
	if n := len(l.engine.Containers()); n != 3 {
		t.Errorf("%d containers are left, want all 3", n)
	}
}

func TestTheDatabaseIsDescribedInSingularAndPlural(t *testing.T) {
	for _, c := range []struct {
		living, deleted, unreadable int
		want                        string
	}{
		{1, 0, 0, "It is open and sound; it holds 1 living sandbox and the history of 0 deleted ones."},
		{2, 1, 0, "It is open and sound; it holds 2 living sandboxes and the history of 1 deleted one."},
		{1, 1, 1, "It is open; it holds 1 living sandbox, the history of 1 deleted one, and 1 that cannot be read."},
	} {
		if got := databaseSentence(c.living, c.deleted, c.unreadable); got != c.want {
			t.Errorf("%+v gives %q", c, got)
		}
	}
}

func TestServicesAndVolumesAreListedAndADeadOneIsRepaired(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	asleep := l.awake()
	spec := &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Services: []*agboxv1.ServiceSpec{{
		Name: "db", Image: runtimetest.FakeImage, Volumes: []*agboxv1.VolumeSpec{{Name: "data", Target: "/data"}},
	}}}
	if _, err := l.ledger.Create(t.Context(), "a", spec); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue("a")
	l.await("a", machine.Ready)
	l.makeSocket("a")
	healthy := []string{"LEAVE DATABASE", "LEAVE SANDBOX_RECORD a", "LEAVE CONTAINER a", "LEAVE CONTAINER a", "LEAVE VOLUME a", "LEAVE NETWORK a"}
	wantFindings(t, l.examine(true), healthy...)
	asleep()
	for _, c := range l.engine.Containers() {
		if c.Service == "db" {
			l.engine.Kill(c.ID, 3)
		}
	}
	out := l.examine(false)
	healthy[1] = "REPAIR SANDBOX_RECORD a"
	wantFindings(t, out, healthy...)
	if text := why(t, out, "REPAIR SANDBOX_RECORD a"); !strings.Contains(text, "services") {
		t.Errorf("it says %q", text)
	}
}

func TestARecordWhoseContainerIsDownIsRepairedByItsRules(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(e *runtimetest.Fake, id string)
		rest    []string
		says    string
	}{
		"removed": {(*runtimetest.Fake).Vanish, []string{"LEAVE NETWORK a"}, "removed outside agbox"},
		"exited": {
			func(e *runtimetest.Fake, id string) { e.Kill(id, 3) },
			[]string{"LEAVE CONTAINER a", "LEAVE NETWORK a"}, "code 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := begin(t, runtimetest.NewFake(), t.TempDir())
			asleep := l.awake()
			l.create("a", "")
			asleep()
			// A running command does not prevent the step: it ends with it.
			job := &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "job", Command: []string{"true"}}
			if _, err := l.ledger.AcceptExec(t.Context(), job, "boot"); err != nil {
				t.Fatal(err)
			}
			c.happens(l.engine, l.engine.Containers()[0].ID)
			out := l.examine(false)
			wantFindings(t, out, append([]string{"LEAVE DATABASE", "REPAIR SANDBOX_RECORD a"}, c.rest...)...)
			if text := why(t, out, "REPAIR SANDBOX_RECORD a"); !strings.Contains(text, "marks it failed") || !strings.Contains(text, c.says) {
				t.Errorf("it says %q", text)
			}
			if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Ready {
				t.Errorf("a look alone made the sandbox %s", sb.State)
			}
		})
	}
}

func TestFixHasTheLoopRepair(t *testing.T) {
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	engine.Hang(runtimetest.VerbEvents) // so only the doctor enqueues
	l.awake()
	l.create("a", "")
	engine.Vanish(engine.Containers()[0].ID)
	wantFindings(t, l.examine(true), "LEAVE DATABASE", "REPAIR SANDBOX_RECORD a done", "LEAVE NETWORK a")
	if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Failed || sb.ErrorReason != agboxv1.ErrorReason_PRIMARY_MISSING.String() {
		t.Errorf("the sandbox is %s (%s)", sb.State, sb.ErrorReason)
	}
	wantFindings(t, l.examine(false), "LEAVE DATABASE", "LEAVE SANDBOX_RECORD a", "LEAVE NETWORK a")
}

func TestOrphansAreToldAndRemovedByFixAlone(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.awake()
	mine := l.create("a", "")
	for _, id := range []runtime.Identity{
		{InstallID: l.db.InstallID(), SandboxID: "z", Nonce: "n", Role: runtime.RolePrimary},
		{InstallID: l.db.InstallID(), SandboxID: "a", Nonce: "other", Role: runtime.RolePrimary},
		{InstallID: "another", SandboxID: "a", Nonce: mine.Nonce, Role: runtime.RolePrimary},
	} {
		l.engine.AddForeign("c-"+id.InstallID+id.SandboxID+id.Nonce, id)
		l.engine.AddForeignNetwork("n-"+id.InstallID+id.SandboxID+id.Nonce, id)
	}
	head := []string{"LEAVE DATABASE", "LEAVE SANDBOX_RECORD a", "LEAVE CONTAINER a", "LEAVE NETWORK a"}
	wantFindings(t, l.examine(false), append(head,
		"REMOVE CONTAINER z", "REMOVE CONTAINER a", "REMOVE NETWORK z", "REMOVE NETWORK a")...)
	if c, n := l.engine.Containers(), l.engine.Networks(); len(c) != 4 || len(n) != 4 {
		t.Fatalf("a look alone left %d containers and %d networks of 4 each", len(c), len(n))
	}
	wantFindings(t, l.examine(true), append(head,
		"REMOVE CONTAINER z done", "REMOVE CONTAINER a done", "REMOVE NETWORK z done", "REMOVE NETWORK a done")...)
	wantFindings(t, l.examine(false), head...)
	if c, n := l.engine.Containers(), l.engine.Networks(); len(c) != 2 || len(n) != 2 {
		t.Errorf("containers %v and networks %v are left, want our own and those of the other install", c, n)
	}
}

func TestARemovalThatFailsIsTold(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.awake()
	l.engine.AddForeign("stray", runtime.Identity{InstallID: l.db.InstallID(), SandboxID: "z"})
	l.engine.Fail(runtimetest.VerbRemoveContainer, errors.New("the engine is in a mood"))
	wantFindings(t, l.examine(true), "LEAVE DATABASE", "REMOVE CONTAINER z error")
}

func TestWhatIsOnItsWayIsNotJudged(t *testing.T) {
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	engine.Hang(runtimetest.VerbEvents)
	l.awake()
	awaitLooks := func(n int) {
		for engine.Calls(runtimetest.VerbInventory) < n {
			goruntime.Gosched()
		}
	}
	awaitLooks(1) // the loop's own look at its start
	release := engine.Hang(runtimetest.VerbInventory)
	answered := make(chan *agboxv1.DoctorResponse)
	go func() {
		out, err := l.doctor.Examine(t.Context(), true)
		if err != nil {
			t.Error(err)
		}
		answered <- out
	}()
	awaitLooks(2)
	l.create("a", "")
	engine.Vanish(engine.Containers()[0].ID)
	release()
	wantFindings(t, <-answered, "LEAVE DATABASE", "LEAVE SANDBOX_RECORD a", "LEAVE NETWORK a")
}

func TestFoldersWithoutARecordAreTold(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.awake()
	l.create("a", "")
	for _, dir := range []string{l.paths.SandboxLogs("gone"), l.paths.GuestLink("gone"), filepath.Join(l.paths.Logs(), ".not ours")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	head := []string{"LEAVE DATABASE", "LEAVE SANDBOX_RECORD a", "LEAVE CONTAINER a", "LEAVE NETWORK a"}
	wantFindings(t, l.examine(false), append(head, "REMOVE LOG_FOLDER gone", "REMOVE GUEST_FOLDER gone")...)
	wantFindings(t, l.examine(true), append(head, "REMOVE LOG_FOLDER gone done", "REMOVE GUEST_FOLDER gone done")...)
	wantFindings(t, l.examine(false), head...)
	if _, err := os.Stat(filepath.Join(l.paths.Logs(), ".not ours")); err != nil {
		t.Error(err)
	}
}

func TestTheLogsOfADeletedSandboxAreKept(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.awake()
	l.create("a", "")
	if _, err := l.ledger.RequestDelete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	l.loop.Interrupt("a")
	for changed := l.ledger.Changed(""); ; changed = l.ledger.Changed("") {
		if _, living := l.ledger.Sandbox("a"); !living {
			break
		}
		<-changed
	}
	wantFindings(t, l.examine(true), "LEAVE DATABASE")
	if _, err := os.Stat(l.paths.SandboxLogs("a")); err != nil {
		t.Error(err)
	}
}

func TestASupervisorThatWasTamperedWithNeedsAPerson(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.awake()
	l.create("a", "")
	l.create("b", "")
	l.create("c", "")
	l.create("d", "")
	l.create("e", "")
	l.guests.mu.Lock()
	l.guests.broken = map[string]error{
		"d": fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SUPERVISOR_TAMPERED, "It greets and lies."),
		"e": fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, "It greets and hangs up."),
	}
	l.guests.mu.Unlock()
	l.guests.lose("a", fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SUPERVISOR_TAMPERED, "It lies."))
	l.guests.lose("b", errors.New("nobody answers"))
	// The link of c still exists, but the next one would connect elsewhere.
	socket := filepath.Join(l.paths.GuestLink("c"), paths.LinkSocket)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run/docker.sock", socket); err != nil {
		t.Fatal(err)
	}
	out := l.examine(false)
	for id, word := range map[string]string{"a": "It lies.", "b": "nobody answers", "c": "not a socket", "d": "It was tampered with. It greets and lies.", "e": "It greets and hangs up."} {
		if text := why(t, out, fmt.Sprintf("LEAVE SANDBOX_RECORD %s !", id)); !strings.Contains(text, word) {
			t.Errorf("of %s it says %q", id, text)
		}
	}
}

func TestRemovedFoldersUnderARunningSandboxNeedAPerson(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.awake()
	l.create("a", "")
	l.create("b", "")
	l.guests.mu.Lock()
	l.guests.logs = map[string]error{"a": fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE, "Its logs are gone.")}
	l.guests.mu.Unlock()
	if err := os.RemoveAll(l.paths.Guest("b")); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"a": "Its container runs and its supervisor answers. Its logs are gone.",
		"b": "Its container runs and its supervisor answers. The file " + filepath.Join(l.paths.GuestLink("b"), paths.LinkSocket) +
			" was removed, so the sandbox cannot be reached after the next start of the daemon: stop and start the sandbox, which makes it again.",
	} {
		if text := why(t, l.examine(false), fmt.Sprintf("LEAVE SANDBOX_RECORD %s !", id)); text != want {
			t.Errorf("of %s it says %q, want %q", id, text, want)
		}
	}
}

func TestMissingRulesAgainstTheHostAreMadeAgain(t *testing.T) {
	engine, dir := runtimetest.NewFake(), t.TempDir()
	l := begin(t, engine, dir)
	l.awake()
	l.create("a", "")
	l.end()
	if err := engine.Fence.Clear(); err != nil {
		t.Fatal(err)
	}
	l = begin(t, engine, dir) // asleep, or it could make the rules before they are missed
	before := engine.Fence.Missed()
	wantFindings(t, l.examine(false), "LEAVE DATABASE", "REPAIR SANDBOX_RECORD a", "LEAVE CONTAINER a", "LEAVE NETWORK a")
	found, fixed := engine.Fence.Missed(), make(chan *agboxv1.DoctorResponse, 1)
	go func() {
		out, _ := l.doctor.Examine(t.Context(), true)
		fixed <- out
	}()
	for engine.Fence.Missed() <= found+(found-before) { // it has found that again, and waits until they are there
		goruntime.Gosched()
	}
	l.awake()
	wantFindings(t, <-fixed, "LEAVE DATABASE", "REPAIR SANDBOX_RECORD a done", "LEAVE CONTAINER a", "LEAVE NETWORK a")
	if got := l.engine.Fence.Fenced(); len(got) != 1 {
		t.Errorf("the rules are %v", got)
	}
	l.engine.Fence.Fail(fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_FENCE_UNAVAILABLE, "No rules can be made here."))
	wantFindings(t, l.examine(false), "LEAVE DATABASE", "LEAVE HOST", "LEAVE SANDBOX_RECORD a", "LEAVE CONTAINER a", "LEAVE NETWORK a")
	if text := why(t, l.examine(false), "LEAVE HOST"); !strings.HasPrefix(text, "No rules can be made here. ") {
		t.Errorf("it says %q", text)
	}
}

func TestWhatAnUnreadableRecordHasIsLeftAlone(t *testing.T) {
	engine, dir := runtimetest.NewFake(), t.TempDir()
	l := begin(t, engine, dir)
	l.awake()
	l.create("a", "")
	l.create("b", "")
	l.end()
	damageEvents(t, l.paths.Database(), "a")

	l = begin(t, engine, dir)
	l.awake()
	l.await("b", machine.Ready)
	for _, fix := range []bool{false, true} {
		wantFindings(t, l.examine(fix), "LEAVE DATABASE",
			"LEAVE SANDBOX_RECORD b", "LEAVE CONTAINER b", "LEAVE NETWORK b",
			"LEAVE SANDBOX_RECORD a !", "LEAVE CONTAINER a", "LEAVE NETWORK a")
	}
}

func TestWithoutTheEngineNothingIsJudged(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	asleep := l.awake()
	l.create("a", "")
	asleep()
	l.engine.GoDown()
	if _, err := l.doctor.Examine(t.Context(), true); fault.ReasonOf(err) != agboxv1.ErrorReason_ENGINE_UNAVAILABLE {
		t.Errorf("got %v, want the engine's absence", err)
	}
}

// damageEvents makes one event of a sandbox unreadable, in place.
func damageEvents(t *testing.T, database, sandboxID string) {
	t.Helper()
	raw, err := os.ReadFile(database)
	if err != nil {
		t.Fatal(err)
	}
	// The text of event_id, the first field. Its tag and length are overwritten.
	mark := []byte("\x0a\x03" + sandboxID + "/1")
	text := strings.ReplaceAll(string(raw), string(mark), "\xff\xff"+sandboxID+"/1")
	if text == string(raw) {
		t.Fatal("the event is not where it should be")
	}
	if err := os.WriteFile(database, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUserNamespacesOfTheEngineAreShown(t *testing.T) {
	engine := runtimetest.NewFake()
	engine.RootUID, engine.RootGID = 165536, 165536
	l := begin(t, engine, t.TempDir())
	out := l.examine(false)
	wantFindings(t, out, "LEAVE DATABASE", "LEAVE HOST")
	if said := why(t, out, "LEAVE HOST"); !strings.Contains(said, "is user 165536 on the host") {
		t.Errorf("it says %q", said)
	}
}
