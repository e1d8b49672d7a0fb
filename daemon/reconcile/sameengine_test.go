package reconcile

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestWhatAnEngineWithoutTheMarkIs(t *testing.T) {
	t.Parallel()
	home := &storev1.Engine{Mark: "m", Id: "A", Root: "/data"}
	for name, c := range map[string]struct {
		known    *storev1.Engine
		id, root string
		has      bool
		expected int
		atStake  int
		want     judgement
	}{
		"first contact": {nil, "A", "/data", false, 0, 0, engineNew},
		"first contact with the containers of an older daemon": {nil, "A", "/data", true, 2, 2, engineNew},
		"first contact, and the containers are missing":        {nil, "A", "/data", false, 1, 1, engineAnother},
		"another engine, nothing to lose":                      {home, "B", "/data", false, 0, 0, engineNew},
		"another engine":                                       {home, "B", "/data", false, 1, 1, engineAnother},
		"the volumes were pruned":                              {home, "A", "/data", true, 1, 1, engineSame},
		"lost data, same id":                                   {home, "A", "/data", false, 1, 1, engineAnother},
		"all was pruned, and nothing ran":                      {home, "A", "/data", false, 2, 0, engineSame},
		"another engine while nothing ran":                     {home, "B", "/data", false, 2, 0, engineAnother},
		"an engine of the past with containers of ours":        {home, "B", "/data", true, 1, 1, engineAnother},
		"a second engine of the host with the same id":         {home, "A", "/other", true, 1, 1, engineAnother},
	} {
		if got := judge(c.known, runtime.EngineInfo{ID: c.id, Root: c.root}, c.has, c.expected, c.atStake); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// wantAnother waits until the loop knows that the engine is another one, and looks again
// twice: nothing was changed, neither in the record nor in the engine.
func (l *life) wantAnother(id string) {
	l.t.Helper()
	before, _ := l.ledger.Sandbox(id)
	l.until("another engine was noticed", func() bool { return isAnother(l.loop.Health().Err) })
	looks := l.engine.Calls(runtimetest.VerbInventory)
	l.loop.Enqueue(id)
	l.until("two more looks", func() bool { return l.engine.Calls(runtimetest.VerbInventory) >= looks+2 })
	now, living := l.ledger.Sandbox(id)
	if !living || now.State != before.State || now.LastSequence != before.LastSequence {
		l.t.Errorf("the record became %v (%v), want it as it was: %v", now.State, living, before.State)
	}
	if left := l.objects(); !left.Empty() {
		l.t.Errorf("another engine was given %v", left)
	}
	if why := l.loop.Condition(now).Degraded; now.State != machine.Failed && !strings.Contains(why, "--adopt-engine") {
		l.t.Errorf("the sandbox is degraded with %q, want what to do", why)
	}
	err := l.loop.Probe(l.t.Context())
	if fault.ReasonOf(err) != agboxv1.ErrorReason_ENGINE_CHANGED || !errdefs.IsUnavailable(err) {
		l.t.Errorf("Probe says %v", err)
	}
}

func TestAnotherEngineChangesNothing(t *testing.T) {
	t.Parallel()
	for name, swap := range map[string]struct{ to, back func(*runtimetest.Fake) }{
		"another engine": {func(e *runtimetest.Fake) { e.Become("other") }, func(e *runtimetest.Fake) { e.Become("") }},
		"lost data":      {func(e *runtimetest.Fake) { e.LoseData() }, func(e *runtimetest.Fake) { e.Become(" before") }},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				l := begin(t, runtimetest.NewFake(), t.TempDir())
				l.create("a", runtimetest.FakeImage)
				l.await("a", machine.Ready)
				l.accept("a", "job")
				swap.to(l.engine)
				if restart {
					l = l.next()
					l.guests.set("a", false) // the link is lost too: the engine has to be asked
				}
				l.wantAnother("a")
				swap.back(l.engine)
				l.guests.set("a", true)
				sb, _ := l.ledger.Sandbox("a")
				l.until("well again", func() bool { return l.loop.Condition(sb).Degraded == "" && l.loop.Health().Err == nil })
				if sb, _ = l.ledger.Sandbox("a"); sb.State != machine.Ready || len(sb.Execs) != 1 {
					t.Errorf("the sandbox is %v with the execs %v, want it READY with its exec", sb.State, sb.Execs)
				}
				if n := len(l.objects().Containers); n != 1 {
					t.Errorf("there are %d containers, want the one that was there", n)
				}
			})
		}
	}
}

// TestWhatIsAskedForWaitsForTheEngine: a stop and a removal are accepted, and happen in the
// engine that has the container.
func TestWhatIsAskedForWaitsForTheEngine(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.engine.Become("other")
	l.until("another engine was noticed", func() bool { return isAnother(l.loop.Health().Err) })
	l.want(l.ledger.RequestDelete, "a")
	l.wantAnother("a")
	l.engine.Become("")
	l.nothingLeft()
	l.until("the end", func() bool { _, living := l.ledger.Sandbox("a"); return !living })
}

// TestAnEngineThatIsReplacedUnnoticed: no call fails and no stream breaks. The look itself
// must find out that its answer comes from another engine.
func TestAnEngineThatIsReplacedUnnoticed(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := beginWith(t, engine, t.TempDir(), time.Hour)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.until("a full look", func() bool { return l.loop.engineKnown() })
	engine.Swap("other")
	looks := engine.Calls(runtimetest.VerbSandboxInventory)
	l.guests.set("a", false)
	l.loop.Enqueue("a")
	l.until("a look", func() bool { return engine.Calls(runtimetest.VerbSandboxInventory) > looks })
	l.until("another engine was noticed", func() bool { return isAnother(l.loop.Health().Err) })
	if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Ready {
		t.Errorf("the sandbox is %v, want READY", sb.State)
	}
}

func TestAPrunedMarkIsMadeAgain(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	marks := l.engine.Calls(runtimetest.VerbMark)
	l.engine.Prune()
	l.until("a new mark", func() bool { return l.engine.Calls(runtimetest.VerbMark) > marks })
	l.engine.Vanish(l.objects().Containers[0].ID) // the mark proves that somebody removed it
	l.guests.set("a", false)
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_PRIMARY_MISSING.String() {
		t.Errorf("reason is %s", r.ErrorReason)
	}
}

func TestAnAdoptedEngineIsTheOneOfTheInstall(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	if err := l.loop.AdoptEngine(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.engine.Become("other")
	l.wantAnother("a")
	if err := l.loop.AdoptEngine(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.guests.set("a", false)
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_PRIMARY_MISSING.String() {
		t.Errorf("reason is %s", r.ErrorReason)
	}
	l.create("b", runtimetest.FakeImage)
	l.await("b", machine.Ready)
	// The mark of the past is no proof.
	l.engine.Become("")
	l.until("the past was noticed", func() bool { return isAnother(l.loop.Health().Err) })
	if sb, _ := l.ledger.Sandbox("b"); sb.State != machine.Ready {
		t.Errorf("sandbox b is %v, want READY", sb.State)
	}
}

func TestAnInstallWithoutSandboxesTakesAnyEngine(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.until("a full look", func() bool { return l.loop.engineKnown() })
	l.engine.Become("other")
	l = l.next()
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
}

// TestACrashBeforeTheEngineIsMarkedForgetsTheEngine: an engine whose mark was never made must
// not be taken for another one.
func TestACrashBeforeTheEngineIsMarkedForgetsTheEngine(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	release := engine.Hang(runtimetest.VerbMark)
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.until("the mark", func() bool { return engine.Calls(runtimetest.VerbMark) > 0 })
	l.end()
	release()
	l.next().await("a", machine.Ready)
}

// TestAnEngineThatLosesItsDataDuringALookIsNoticed: what the look has shown before is no proof.
func TestAnEngineThatLosesItsDataDuringALookIsNoticed(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.accept("a", "job")
	release := l.engine.Hang(runtimetest.VerbMarked)
	asked := l.engine.Calls(runtimetest.VerbMarked)
	l.until("a look asks for the mark", func() bool { return l.engine.Calls(runtimetest.VerbMarked) > asked })
	l.engine.LoseData()
	release()
	l.wantAnother("a")
}

// TestOneOfManyAdoptsTheEngine: each of these would make a mark of its own, and remove those
// of the others.
func TestOneOfManyAdoptsTheEngine(t *testing.T) {
	t.Parallel()
	for range 50 {
		l := begin(t, runtimetest.NewFake(), t.TempDir())
		var looks sync.WaitGroup
		for range 8 {
			looks.Go(func() { _ = l.loop.identify(t.Context()) })
		}
		looks.Wait()
		known, err := l.loop.opts.Identities.Engine(t.Context())
		if err != nil || known == nil {
			t.Fatalf("the engine of the install is %v, %v", known, err)
		}
		if marked, err := l.engine.Marked(t.Context(), l.loop.opts.InstallID, known.GetMark()); err != nil || !marked {
			t.Fatalf("the engine has the mark of the install: %v, %v", marked, err)
		}
		l.end()
	}
}

// TestProcessesWithoutTheirContainerGoOn: an engine that lost its data, or was adopted, does
// not have the container. Its first process lives, so no command is lost and nothing takes
// its place.
func TestProcessesWithoutTheirContainerGoOn(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.create("b", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.await("b", machine.Ready)
	l.accept("a", "job")
	l.engine.Become("other")
	l.wantAnother("a")
	l.guests.mu.Lock()
	l.guests.strays["a"], l.guests.strays["b"] = true, true
	l.guests.mu.Unlock()
	if err := l.loop.AdoptEngine(t.Context()); err != nil {
		t.Fatal(err)
	}
	sb, _ := l.ledger.Sandbox("a")
	l.until("it is said that they run on", func() bool { return strings.Contains(l.loop.Condition(sb).Degraded, "its processes run on") })
	if sb, _ = l.ledger.Sandbox("a"); sb.State != machine.Ready || len(sb.Execs) != 1 {
		t.Errorf("the sandbox is %v with the execs %v, want it READY with its exec", sb.State, sb.Execs)
	}
	if left := l.objects(); !left.Empty() {
		t.Errorf("the engine was given %v", left)
	}
	l.stop("a")
	l.await("a", machine.Stopped)
	l.want(l.ledger.RequestDelete, "b")
	l.until("the end", func() bool { _, living := l.ledger.Sandbox("b"); return !living })
	l.guests.mu.Lock()
	defer l.guests.mu.Unlock()
	if !slices.Contains(l.guests.did, "end a") || !slices.Contains(l.guests.did, "end b") {
		t.Errorf("done was %v, want the processes of both ended", l.guests.did)
	}
}

// lose has the engine lose sandbox "a" with its exec "job", which the supervisor keeps.
func lose(t *testing.T) *life {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.accept("a", "job")
	l.guests.mu.Lock()
	l.guests.keeps["job"] = true
	l.guests.mu.Unlock()
	l.engine.Become("other")
	l.wantAnother("a")
	l.guests.set("a", false)
	if err := l.loop.AdoptEngine(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := l.await("a", machine.Failed); len(r.Execs) != 0 || len(r.Lost) != 1 {
		t.Fatalf("the execs are %v, lost are %v; want the one lost", r.Execs, r.Lost)
	}
	return l
}

// TestAPrimaryThatWasMissingAndIsBackGoesOn: its sandbox is READY as before, with its commands.
func TestAPrimaryThatWasMissingAndIsBackGoesOn(t *testing.T) {
	t.Parallel()
	l := lose(t)
	l.guests.set("a", true)
	l.engine.Become("")
	r := l.await("a", machine.Ready)
	if exec := r.Execs["job"]; len(r.Execs) != 1 || exec.BootID != "boot" || len(r.Lost) != 0 {
		t.Errorf("the execs are %v, lost are %v; want the one running", r.Execs, r.Lost)
	}
	if c := l.objects().Containers; len(c) != 1 || c[0].State != runtime.StateRunning {
		t.Errorf("the engine has %v, want the container of before, running", c)
	}
	page, err := l.ledger.Events(t.Context(), "a", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var types []agboxv1.EventType
	for _, ev := range page.Records {
		types = append(types, ev.GetEventType())
	}
	end := types[len(types)-5:]
	if want := []agboxv1.EventType{
		agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_SANDBOX_FAILED,
		agboxv1.EventType_SANDBOX_RESUME_REQUESTED, agboxv1.EventType_EXEC_FOUND, agboxv1.EventType_SANDBOX_READY,
	}; !slices.Equal(end, want) {
		t.Errorf("the events end with %v, want %v", end, want)
	}
}

// TestAPrimaryThatIsBackInAnotherLifeHasNoExecs: its supervisor does not have them.
func TestAPrimaryThatIsBackInAnotherLifeHasNoExecs(t *testing.T) {
	t.Parallel()
	l := lose(t)
	l.guests.mu.Lock()
	delete(l.guests.keeps, "job")
	l.guests.mu.Unlock()
	l.engine.Become("")
	l.until("the engine of before is taken again", func() bool { return len(l.objects().Containers) == 1 && l.loop.engineKnown() })
	l.guests.set("a", true)
	if r := l.await("a", machine.Ready); len(r.Execs) != 0 || len(r.Lost) != 0 {
		t.Errorf("the execs are %v, lost are %v; want none", r.Execs, r.Lost)
	}
}

// TestAPrunedMarkParksNoInstall: somebody removed all unused volumes while the only sandbox
// is one whose primary is known to be missing, or that has failed before.
func TestAPrunedMarkParksNoInstall(t *testing.T) {
	t.Parallel()
	for name, exits := range map[string]bool{"missing": false, "exited": true} {
		t.Run(name, func(t *testing.T) { t.Parallel(); pruneAfter(t, exits) })
	}
}

func pruneAfter(t *testing.T, exits bool) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.until("a full look", func() bool { return l.loop.engineKnown() })
	primary := l.objects().Containers[0].ID
	if exits {
		l.engine.Kill(primary, 1)
	} else {
		l.engine.Vanish(primary)
	}
	l.guests.set("a", false)
	l.await("a", machine.Failed)
	if exits {
		l.engine.Vanish(primary)
	}
	l.engine.Prune()
	l = l.next()
	l.create("b", runtimetest.FakeImage)
	l.await("b", machine.Ready)
}
