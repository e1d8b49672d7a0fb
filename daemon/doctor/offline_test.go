package doctor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/guests/execs"
	"github.com/agbox/agbox/daemon/incarnations"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func offline(engine *runtimetest.Fake, install paths.Install) Offline {
	return Offline{
		Engine: engine, Paths: install, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Execs: func(ctx context.Context, sandboxID string, running bool) (ledger.AdoptedExecs, error) {
			return execs.AdoptAll(ctx, install, sandboxID, running, time.Now())
		},
		Agents: func() []ledger.AdoptedAgent { return incarnations.AdoptAll(install, slog.New(slog.DiscardHandler)) },
	}
}

func examineOffline(t *testing.T, o Offline, fix bool) *agboxv1.DoctorResponse {
	t.Helper()
	out, err := o.Examine(t.Context(), fix)
	if err != nil {
		t.Fatal(err)
	}
	if !out.GetOffline() {
		t.Error("the answer does not say that no daemon was asked")
	}
	return out
}

// files returns the contents of all files of an install.
func files(t *testing.T, install paths.Install) map[string][]byte {
	t.Helper()
	found := make(map[string][]byte)
	err := filepath.WalkDir(install.Data, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type() == os.ModeSocket {
			return err
		}
		found[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func wantSameFiles(t *testing.T, got, want map[string][]byte) {
	t.Helper()
	for path := range got {
		if _, there := want[path]; !there {
			t.Errorf("%s was made", path)
		}
	}
	for path, content := range want {
		if !bytes.Equal(got[path], content) {
			t.Errorf("%s was changed", path)
		}
	}
}

// populated is an install with a running sandbox "a", named demo, and a stopped one "b".
// Its daemon has ended.
func populated(t *testing.T) (*runtimetest.Fake, paths.Install, string) {
	t.Helper()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	l.awake()
	l.create("a", "demo")
	l.create("b", "")
	if _, err := l.ledger.RequestStop(t.Context(), "b", ""); err != nil {
		t.Fatal(err)
	}
	l.loop.Interrupt("b")
	l.await("b", machine.Stopped)
	l.end()
	return engine, l.paths, l.db.InstallID()
}

func lose(t *testing.T, install paths.Install) {
	t.Helper()
	if err := os.Rename(install.Database(), install.Database()+".kept-elsewhere"); err != nil {
		t.Fatal(err)
	}
}

func TestAnInstallThatNeverWasIsNotMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	out := examineOffline(t, offline(runtimetest.NewFake(), paths.Install{Data: dir}), true)
	wantFindings(t, out, "LEAVE DATABASE")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}
}

func TestASoundDatabaseIsOnlyLookedAt(t *testing.T) {
	engine, install, _ := populated(t)
	before := files(t, install)
	wantFindings(t, examineOffline(t, offline(engine, install), true), "LEAVE DATABASE")
	wantSameFiles(t, files(t, install), before)
}

func TestADamagedDatabaseIsNeverTouched(t *testing.T) {
	engine, install, _ := populated(t)
	if err := os.Truncate(install.Database(), 5000); err != nil {
		t.Fatal(err)
	}
	before := files(t, install)
	for _, fix := range []bool{false, true} {
		out := examineOffline(t, offline(engine, install), fix)
		wantFindings(t, out, "LEAVE DATABASE !", "LEAVE CONTAINER a", "LEAVE CONTAINER b", "LEAVE NETWORK a", "LEAVE NETWORK b")
		if text := why(t, out, "LEAVE DATABASE !"); !strings.Contains(text, "5000 bytes") || !strings.Contains(text, "backup") {
			t.Errorf("it says %q", text)
		}
	}
	wantSameFiles(t, files(t, install), before)
	engine.GoDown()
	wantFindings(t, examineOffline(t, offline(engine, install), true), "LEAVE DATABASE !")
}

func TestALostDatabaseIsToldAndAdoptedOnRequest(t *testing.T) {
	engine, install, installID := populated(t)
	lose(t, install)
	stray := runtime.Identity{InstallID: installID, SandboxID: "c", Nonce: "n", Role: runtime.RolePrimary}
	engine.AddForeign("named otherwise", stray)
	stray.SandboxID = "d"
	engine.AddForeign(runtime.PrimaryName("d"), stray)
	engine.AddForeignNetwork("left", runtime.Identity{InstallID: installID, SandboxID: "e", Nonce: "n", Role: runtime.RoleNetwork})
	if err := os.MkdirAll(install.SandboxLogs("old"), 0o700); err != nil {
		t.Fatal(err)
	}

	before := files(t, install)
	o := offline(engine, install)
	rest := []string{"LEAVE CONTAINER c !", "LEAVE CONTAINER d !", "LEAVE NETWORK a", "LEAVE NETWORK b", "LEAVE NETWORK e", "LEAVE LOG_FOLDER old"}
	wantFindings(t, examineOffline(t, o, false), append([]string{"ADOPT DATABASE", "ADOPT CONTAINER a", "ADOPT CONTAINER b"}, rest...)...)
	wantSameFiles(t, files(t, install), before)
	out := examineOffline(t, o, true)
	if c, d := why(t, out, rest[0]), why(t, out, rest[1]); !strings.Contains(c, "another name") || !strings.Contains(d, "folders") {
		t.Errorf("of what is not adopted it says %q and %q", c, d)
	}
	wantFindings(t, out, append([]string{"ADOPT DATABASE done", "ADOPT CONTAINER a done", "ADOPT CONTAINER b done"}, rest...)...)
	if text := why(t, out, "ADOPT CONTAINER a done"); !strings.Contains(text, "labels") || !strings.Contains(text, install.SandboxLogs("a")) {
		t.Errorf("of what is lost and kept it says %q", text)
	}
	wantFindings(t, examineOffline(t, o, true), "LEAVE DATABASE")
	if n := len(engine.Containers()); n != 4 {
		t.Errorf("%d containers are left of 4", n)
	}
	for path := range files(t, install) {
		if strings.Contains(path, adoptingSuffix) {
			t.Errorf("%s was left behind", path)
		}
	}

	l := begin(t, engine, install.Data)
	if l.db.InstallID() != installID {
		t.Errorf("the install is %s now, was %s", l.db.InstallID(), installID)
	}
	wantAdopted(t, l)
}

// wantAdopted checks that the next daemon serves both sandboxes.
func wantAdopted(t *testing.T, l *life) {
	t.Helper()
	l.awake()
	a := l.await("a", machine.Ready)
	want := &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Name: "demo", Envs: map[string]string{"A": "b", "BLANK": "", "GOGC": "50"}}
	if a.Name != "demo" || !proto.Equal(a.Spec, want) {
		t.Errorf("sandbox a is %q, %v", a.Name, a.Spec)
	}
	if b := l.await("b", machine.Stopped); b.Name != "" {
		t.Errorf("sandbox b is called %q", b.Name)
	}
	if _, err := l.ledger.RequestResume(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	l.loop.Interrupt("b")
	l.await("b", machine.Ready)
	if n := l.engine.Calls(runtimetest.VerbEnsureContainer); n != 2 {
		t.Errorf("containers were made %d times, want 2: those of the first life", n)
	}
}

func TestServicesAreAdoptedWithTheirSandboxAndStartAgainWithIt(t *testing.T) {
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	l.awake()
	want := []*agboxv1.ServiceSpec{
		{
			Name: "app", Image: runtimetest.FakeImage, Command: []string{"serve"}, Envs: map[string]string{"A": "b"}, User: "nobody", WorkingDir: "/srv",
			Ports: []*agboxv1.PortMapping{{ContainerPort: 80, HostIp: "127.0.0.1", Protocol: agboxv1.PortProtocol_PORT_PROTOCOL_TCP}},
		},
		{
			Name: "db", Image: runtimetest.FakeImage,
			Volumes: []*agboxv1.VolumeSpec{{Name: "data", Target: "/data"}}, Healthcheck: &agboxv1.HealthcheckConfig{Test: []string{"NONE"}, Retries: 2},
		},
	}
	if _, err := l.ledger.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Services: want}); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue("a")
	nonce := l.await("a", machine.Ready).Nonce
	l.end()
	lose(t, l.paths)
	// A container with our labels but another name is not adopted.
	engine.AddForeign("stranger", runtime.Identity{InstallID: l.db.InstallID(), SandboxID: "a", Nonce: nonce, Role: runtime.RoleService, Service: "odd"})

	out := examineOffline(t, offline(engine, l.paths), true)
	if text := why(t, out, "ADOPT CONTAINER a done"); !strings.Contains(text, "services (app, db)") {
		t.Errorf("it says %q", text)
	}
	n := begin(t, engine, l.paths.Data)
	n.awake()
	got := n.await("a", machine.Ready).Spec.GetServices()
	for i, s := range want {
		s.Required = proto.Bool(false)
		if i >= len(got) || !proto.Equal(got[i], s) {
			t.Errorf("service %s is not adopted as it was: %v", s.GetName(), got)
		}
	}
	if _, err := n.ledger.RequestStop(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	n.loop.Interrupt("a")
	n.await("a", machine.Stopped)
	if _, err := n.ledger.RequestResume(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	n.loop.Interrupt("a")
	deadline := time.After(patience)
	for {
		changed := n.ledger.Changed("a")
		if sb, _ := n.ledger.Sandbox("a"); sb.Services["app"].Phase == machine.Up && sb.Services["db"].Phase == machine.Up {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the services did not start again")
		}
	}
	if n := engine.Calls(runtimetest.VerbEnsureContainer); n != 3 {
		t.Errorf("containers were made %d times, want 3: those of the first life", n)
	}
}

func TestWithoutTheEngineNothingIsAdopted(t *testing.T) {
	engine, install, _ := populated(t)
	lose(t, install)
	before := files(t, install)
	engine.GoDown()
	if _, err := offline(engine, install).Examine(t.Context(), true); fault.ReasonOf(err) != agboxv1.ErrorReason_ENGINE_UNAVAILABLE {
		t.Errorf("got %v, want the engine's absence", err)
	}
	wantSameFiles(t, files(t, install), before)
}

func TestAnAdoptionThatBreaksOffLeavesTheDatabaseLost(t *testing.T) {
	engine, install, _ := populated(t)
	lose(t, install)
	before := files(t, install)
	o := offline(engine, install)
	found, err := engine.Inventory(t.Context(), "")
	if err != nil || len(found.Containers) > 0 {
		t.Fatal("the fake engine lists what has no install", err)
	}
	// Two sandboxes with the same id cannot both get a record: the whole adoption fails.
	twice := []adoption{{}, {}}
	for i := range twice {
		twice[i].ID, twice[i].Nonce, twice[i].Spec = "a", "n", &agboxv1.CreateSpec{}
	}
	if err := o.carryOut(t.Context(), twice); err == nil {
		t.Fatal("it did not break off")
	}
	wantSameFiles(t, files(t, install), before)

	// The remains of a killed adoption do no harm.
	if err := os.WriteFile(install.Database()+adoptingSuffix, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := examineOffline(t, o, true)
	if !slices.ContainsFunc(out.GetFindings(), func(f *agboxv1.DoctorFinding) bool { return short(f) == "ADOPT DATABASE done" }) {
		t.Errorf("the findings are %v", out.GetFindings())
	}
}

func TestAnAdoptionNeverReplacesADatabase(t *testing.T) {
	engine, install, _ := populated(t)
	before := files(t, install)
	if err := offline(engine, install).carryOut(t.Context(), nil); err == nil {
		t.Error("a database that is there was replaced")
	}
	wantSameFiles(t, files(t, install), before)
}

func TestTheMainCommandOfAContainerIsFoundAgain(t *testing.T) {
	for _, c := range []struct{ runs, imageEntrypoint, imageCommand, entrypoint, command string }{
		{"/entry serve", "/entry", "serve", "", ""},
		{"/entry mine", "/entry", "serve", "", "mine"},
		{"mine", "", "serve", "", "mine"},
		{"mine too", "/entry", "serve", "mine too", ""},
		{"/entry", "/entry", "serve", "/entry", ""},
		{"", "", "sh", "", ""},
	} {
		spec := new(agboxv1.CreateSpec)
		rebuildCommand(spec, strings.Fields(c.runs), runtime.Image{Entrypoint: strings.Fields(c.imageEntrypoint), Cmd: strings.Fields(c.imageCommand)})
		if got := strings.Join(spec.GetEntrypoint(), " ") + "|" + strings.Join(spec.GetCommand(), " "); got != c.entrypoint+"|"+c.command {
			t.Errorf("%+v: the spec has %q", c, got)
		}
	}
}
