package reconcile

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
	"github.com/agbox/agbox/store"
)

// sweeper is a loop that looks when the test says so, at a time that the test sets.
type sweeper struct {
	*Loop
	t      *testing.T
	engine *runtimetest.Fake
	now    time.Time
	log    *bytes.Buffer
}

func newSweeper(t *testing.T) *sweeper {
	t.Helper()
	dir := t.TempDir()
	install := paths.Install{Data: dir, Config: dir, Run: dir}
	db, err := store.Open(t.Context(), store.Options{Path: install.Database(), Sentinel: install.Sentinel()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := &sweeper{t: t, engine: runtimetest.NewFake(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), log: new(bytes.Buffer)}
	log := slog.New(slog.NewTextHandler(s.log, nil))
	clock := func() time.Time { return s.now }
	book, err := ledger.Open(t.Context(), db, clock, log)
	if err != nil {
		t.Fatal(err)
	}
	nobody := &guests{ledger: book}
	s.Loop = New(Options{
		Engine: s.engine, Fence: s.engine.Fence, Links: nobody, Execs: nobody, Files: nobody, Ledger: book, Paths: install, InstallID: db.InstallID(), Identities: db,
		Supervisor: filepath.Join(dir, "init"), InstallSupervisor: func() (string, error) { return filepath.Join(dir, "init"), nil },
		OrphanGrace: 10 * time.Minute, Now: clock, Log: log,
	})
	return s
}

// look is one full look with all its consequences.
func (s *sweeper) look(after time.Duration) {
	s.t.Helper()
	s.now = s.now.Add(after)
	s.resync(s.t.Context())
	s.wg.Wait()
}

// add adds a container and a network to the engine.
func (s *sweeper) add(name, installID, sandboxID, nonce string) {
	s.engine.AddForeign(name, runtime.Identity{InstallID: installID, SandboxID: sandboxID, Nonce: nonce, Role: runtime.RolePrimary})
	s.engine.AddForeignNetwork(name+"-net", runtime.Identity{InstallID: installID, SandboxID: sandboxID, Nonce: nonce, Role: runtime.RoleNetwork})
}

// addVolume adds a volume.
func (s *sweeper) addVolume(name, sandboxID string) {
	s.t.Helper()
	err := s.engine.EnsureVolume(s.t.Context(), runtime.VolumeSpec{
		Name: name, Identity: runtime.Identity{InstallID: s.opts.InstallID, SandboxID: sandboxID, Nonce: "gone", Role: runtime.RoleVolume, Service: "data"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestAVolumeOfNoSandboxGoesWithItsContainer(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	s.addVolume("stray", "nobody")
	s.add("user", s.opts.InstallID, "nobody", "gone")
	s.look(0)
	if inv, err := s.engine.Inventory(t.Context(), s.opts.InstallID); err != nil || len(inv.Volumes) != 1 {
		t.Fatalf("before the grace is over: %+v, %v", inv, err)
	}
	s.look(s.opts.OrphanGrace)
	if inv, err := s.engine.Inventory(t.Context(), s.opts.InstallID); err != nil || !inv.Empty() {
		t.Errorf("after it: %+v, %v", inv, err)
	}
}

// left lists the objects of the engine.
func (s *sweeper) left() string {
	var names []string
	for _, c := range s.engine.Containers() {
		names = append(names, c.Name)
	}
	for _, n := range s.engine.Networks() {
		names = append(names, n.Name)
	}
	return strings.Join(names, " ")
}

func (s *sweeper) wantLeft(want string) {
	s.t.Helper()
	if got := s.left(); got != want {
		s.t.Errorf("the engine has %q, want %q", got, want)
	}
}

func (s *sweeper) create(id string) ledger.Sandbox {
	s.t.Helper()
	sb, err := s.ledger.Create(s.t.Context(), id, &agboxv1.CreateSpec{Image: runtimetest.FakeImage})
	if err != nil {
		s.t.Fatal(err)
	}
	return sb
}

func TestOrphansOfOursGoAfterTheirGraceAndNothingElseDoes(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	living := s.create("living")
	deleted := s.create("deleted")
	for _, typ := range []agboxv1.EventType{agboxv1.EventType_SANDBOX_DELETE_REQUESTED, agboxv1.EventType_SANDBOX_DELETED} {
		after, err := s.ledger.Emit(t.Context(), deleted.Record, &agboxv1.SandboxEvent{EventType: typ})
		if err != nil {
			t.Fatal(err)
		}
		deleted = after
	}
	s.add("living", s.opts.InstallID, "living", living.Nonce)
	s.add("spoof", s.opts.InstallID, "living", "wrong")
	s.add("deleted", s.opts.InstallID, "deleted", deleted.Nonce)
	s.add("unknown", s.opts.InstallID, "unknown", "n")
	s.add("foreign", "another install", "unknown", "n")
	s.add("foreign2", "another install", "living", living.Nonce)
	all := s.left()
	s.look(0)
	s.wantLeft(all)
	// What a deleted sandbox left behind is removed at the second look.
	s.look(10*time.Minute - time.Second)
	s.wantLeft("living spoof unknown foreign foreign2 living-net spoof-net unknown-net foreign-net foreign2-net")
	s.look(time.Second)
	s.wantLeft("living foreign foreign2 living-net foreign-net foreign2-net")
	s.look(time.Hour)
	if n := strings.Count(s.log.String(), "an orphan was found"); n != 6 {
		t.Errorf("6 orphans were reported %d times:\n%s", n, s.log)
	}
	if n := strings.Count(s.log.String(), "an orphan was removed"); n != 6 {
		t.Errorf("6 removals were reported %d times:\n%s", n, s.log)
	}
}

func TestAnInventoryThatShowsTooMuchMakesNoOrphans(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	s.opts.OrphanGrace = time.Nanosecond
	s.add("foreign", "another install", "unknown", "n")
	inv := runtime.Inventory{Containers: s.engine.Containers(), Networks: s.engine.Networks()}
	for range 2 {
		s.now = s.now.Add(time.Hour)
		s.sweep(t.Context(), inv)
		s.wg.Wait()
	}
	s.wantLeft("foreign foreign-net")
}

func TestTheGraceStartsAnewWhenAnOrphanWasAway(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	id := s.engine.AddForeign("o", runtime.Identity{InstallID: s.opts.InstallID, SandboxID: "unknown", Nonce: "n"})
	s.look(0)
	s.engine.Vanish(id)
	s.look(5 * time.Minute)
	s.add("o", s.opts.InstallID, "unknown", "n")
	s.look(time.Minute)
	s.look(5 * time.Minute)
	s.wantLeft("o o-net")
	s.look(5 * time.Minute)
	s.wantLeft("")
}

func TestAnOrphanThatWillNotGoIsReportedOnceAndTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	s.add("o", s.opts.InstallID, "unknown", "n")
	s.look(0)
	s.engine.Fail(runtimetest.VerbRemoveContainer, errors.New("busy"))
	for range 2 {
		s.look(10 * time.Minute)
		s.wantLeft("o")
	}
	s.engine.Fail(runtimetest.VerbRemoveContainer, nil)
	s.look(time.Second)
	s.wantLeft("")
	if n := strings.Count(s.log.String(), "cannot be removed"); n != 1 {
		t.Errorf("it was reported %d times:\n%s", n, s.log)
	}
}

func TestARemovalThatHangsHoldsUpNoLook(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	s.add("o", s.opts.InstallID, "unknown", "n")
	s.look(0)
	release := s.engine.Hang(runtimetest.VerbRemoveContainer)
	s.now = s.now.Add(time.Hour)
	for range 3 {
		s.resync(t.Context())
	}
	release()
	s.wg.Wait()
	if n := s.engine.Calls(runtimetest.VerbRemoveContainer); n != 1 {
		t.Errorf("the removal was tried %d times at a time", n)
	}
	s.wantLeft("")
}

func TestOrphansAreFoundByTheRunningLoop(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	s.opts.OrphanGrace, s.opts.Resync = time.Nanosecond, 10*time.Millisecond
	s.Loop.now = time.Now
	s.Loop.log = slog.New(slog.DiscardHandler)
	s.add("o", s.opts.InstallID, "unknown", "n")
	ctx, cancel := context.WithCancel(t.Context())
	var loop sync.WaitGroup
	loop.Go(func() { s.Run(ctx) })
	l := &life{t: t, engine: s.engine, ledger: s.ledger, loop: s.Loop}
	l.nothingLeft()
	cancel()
	loop.Wait()
}

func TestObjectsOfASandboxThatIsBeingRemovedAreItsWorkersBusiness(t *testing.T) {
	t.Parallel()
	s := newSweeper(t)
	sb := s.create("a")
	s.add("a", s.opts.InstallID, "a", sb.Nonce)
	if _, err := s.ledger.RequestDelete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	s.look(0)
	s.look(time.Hour)
	s.wantLeft("a a-net")
	if sb, _ := s.ledger.Sandbox("a"); sb.State != machine.Deleting {
		t.Errorf("it is %s", sb.State)
	}
}
