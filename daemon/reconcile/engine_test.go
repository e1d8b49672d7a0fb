package reconcile

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestAnOutageLastsFromTheLastAnswerToTheNext(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var o outage
	o = o.missed(at(1), time.Time{}).lost(at(1), time.Time{})
	if o != (outage{}) {
		t.Errorf("an engine that has never answered is in the outage %v", o)
	}
	o = o.answered(at(10))
	o = o.missed(at(20), at(10))
	o = o.missed(at(30), at(10))
	open := o
	o = o.answered(at(40)).answered(at(50))
	if want := (outage{from: at(10), until: at(40)}); o != want {
		t.Errorf("the outage is %v, want %v", o, want)
	}
	for what, later := range map[string]outage{
		"a question asked in it that fails late":      o.missed(at(39), at(50)),
		"a stream opened before it that is lost late": o.lost(at(9), at(50)),
	} {
		if later != o {
			t.Errorf("%s makes the outage %v of %v", what, later, o)
		}
	}
	for what, next := range map[string]outage{
		"a question asked after it":            o.missed(at(41), at(50)),
		"the loss of a stream opened in it":    o.lost(at(39), at(50)),
		"the loss of a stream opened after it": o.lost(at(45), at(50)),
	} {
		if want := (outage{from: at(50)}); next != want {
			t.Errorf("%s begins the outage %v, want %v", what, next, want)
		}
	}
	for _, c := range []struct {
		state   runtime.ContainerState
		ended   int
		outage  outage
		covered bool
	}{
		{runtime.StateExited, 9, o, false},
		{runtime.StateExited, 25, o, true},
		{runtime.StateDead, 25, o, true},
		{runtime.StatePaused, 25, o, false},
		{runtime.StateExited, 45, o, false},
		{runtime.StateExited, 45, open, true},
		{runtime.StateExited, 45, outage{}, false},
	} {
		if got := c.outage.covers(&runtime.Container{State: c.state, FinishedAt: at(c.ended)}); got != c.covered {
			t.Errorf("%s at %d counts as ended with the engine in %v: %v", c.state, c.ended, c.outage, got)
		}
	}
	if o.covers(nil) {
		t.Error("no container has ended with the engine")
	}
}

func TestEngineOutageIsSaidAndOutlived(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.until("the engine's version", func() bool { return l.engine.Calls(runtimetest.VerbInfo) > 0 })
	for range 3 {
		before := l.engine.Calls(runtimetest.VerbInfo)
		l.engine.Restart(true) // too short for a call to fail; the stream breaks
		l.until("the engine's version again", func() bool { return l.engine.Calls(runtimetest.VerbInfo) > before })
	}
}

func TestContainersAreShownFromMemoryWhileTheEngineIsAway(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	l.engine.GoDown()
	l.until("the outage", func() bool { return l.loop.Health().Err != nil })
	before := l.engine.Calls(runtimetest.VerbSandboxInventory)
	if shown := l.loop.Containers(t.Context(), sb); len(shown) != 1 {
		t.Errorf("shown are %v, want what was seen last", shown)
	}
	if now := l.engine.Calls(runtimetest.VerbSandboxInventory); now != before {
		t.Error("an engine that is known not to answer is asked all the same")
	}
}

// TestContainersAreReadWithOneCallEach: a list is several calls that look at all of the engine.
func TestContainersAreReadWithOneCallEach(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	l.end() // from now on only the reader calls the engine
	calls := func(verbs ...runtimetest.Verb) (n int) {
		for _, v := range verbs {
			n += l.engine.Calls(v)
		}
		return n
	}
	inspections := func() int { return calls(runtimetest.VerbInspectContainer) }
	others := func() int {
		return calls(runtimetest.VerbInventory, runtimetest.VerbSandboxInventory, runtimetest.VerbPing, runtimetest.VerbInfo, runtimetest.VerbMarked)
	}
	inspected, other := inspections(), others()
	shown := l.loop.Containers(t.Context(), sb)
	if len(shown) != 1 || shown[0].State != runtime.StateRunning || inspections() != inspected+1 || others() != other {
		t.Errorf("shown are %+v, with %d inspections and %d other calls", shown, inspections()-inspected, others()-other)
	}
	l.engine.Rename(shown[0].ID, "another")
	if shown := l.loop.Containers(t.Context(), sb); len(shown) != 1 || shown[0].Name != "another" {
		t.Errorf("shown are %+v, want the renamed container", shown)
	}
	foreign := l.engine.AddForeign(runtime.PrimaryName("b"), runtime.Identity{InstallID: "other", SandboxID: "b", Nonce: "n"})
	if shown := l.loop.Containers(t.Context(), ledger.Sandbox{Record: machine.Record{ID: "b", Nonce: "n"}}); len(shown) != 0 {
		t.Errorf("container %s of another install is shown: %+v", foreign, shown)
	}
}

// If the socket is held by another process, an engine restart lets calls wait, and none
// fails.
func TestARestartThatNoCallFailsInIsAnOutage(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	first := engine.Hang(runtimetest.VerbInventory)
	l := beginWith(t, engine, t.TempDir(), time.Hour)
	l.until("the first full look", func() bool { return engine.Calls(runtimetest.VerbInventory) == 1 })
	second := engine.Hang(runtimetest.VerbInventory)
	first()
	l.until("the full look after the stream was opened", func() bool { return engine.Calls(runtimetest.VerbInventory) == 2 })
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	engine.Restart(false)
	l.until("an outage", func() bool {
		l.loop.mu.Lock()
		defer l.loop.mu.Unlock()
		return l.loop.outage.lasts()
	})
	if err := l.loop.Health().Err; err != nil {
		t.Errorf("a call has failed: %v", err)
	}
	second()
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_ENGINE_RESTARTED.String() {
		t.Errorf("reason is %s", r.ErrorReason)
	}
}

func TestAStepThatTheEngineDoesNotAnswerBeginsAnOutage(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := beginWith(t, engine, t.TempDir(), time.Hour)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	primary := l.objects().Containers[0].ID
	l.until("a full look", func() bool { return l.loop.engineKnown() })
	looks := engine.Calls(runtimetest.VerbSandboxInventory)
	engine.Fail(runtimetest.VerbSandboxInventory, fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "nobody answers"))
	l.loop.Enqueue("a")
	l.until("a look that fails", func() bool { return engine.Calls(runtimetest.VerbSandboxInventory) > looks })
	engine.Kill(primary, 9)
	looks = engine.Calls(runtimetest.VerbSandboxInventory)
	l.until("two more", func() bool { return engine.Calls(runtimetest.VerbSandboxInventory) >= looks+2 })
	engine.Fail(runtimetest.VerbSandboxInventory, nil)
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_ENGINE_RESTARTED.String() {
		t.Errorf("reason is %s", r.ErrorReason)
	}
}

// TestTheNextDaemonLooksOnceAtAll: not at each sandbox, though the engine takes a while to list them.
func TestTheNextDaemonLooksOnceAtAll(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	for _, id := range []string{"a", "b", "c"} {
		l.create(id, runtimetest.FakeImage)
		l.await(id, machine.Ready)
	}
	up := func(o *Options) { // before anything is asked
		for _, id := range []string{"a", "b", "c"} {
			o.Links.(*guests).set(id, true)
		}
	}
	for {
		l.end()
		one, all := engine.Calls(runtimetest.VerbSandboxInventory), engine.Calls(runtimetest.VerbInventory)
		release := engine.Hang(runtimetest.VerbInventory)
		begun := time.Now()
		l = l.next(up)
		l.until("the full look", func() bool { return engine.Calls(runtimetest.VerbInventory) > all })
		release()
		l.until("all are linked", func() bool { return l.guests.Connected("a") && l.guests.Connected("b") && l.guests.Connected("c") })
		if time.Since(begun) >= firstLookWait {
			continue // this machine was too busy for it
		}
		if n := engine.Calls(runtimetest.VerbSandboxInventory) - one; n > 0 {
			t.Errorf("it looked %d times at one sandbox", n)
		}
		return
	}
}

// TestWhatAListLacksIsNotLost: only who asks for the primary itself knows that it is gone.
func TestWhatAListLacksIsNotLost(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.accept("a", "job")
	primary := l.objects().Containers[0].ID
	l.engine.Overlook(primary)
	looks := l.engine.Calls(runtimetest.VerbInventory)
	l.until("some looks", func() bool { return l.engine.Calls(runtimetest.VerbInventory) > looks+3 })
	if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Ready || len(sb.Execs) != 1 || len(sb.Lost) > 0 {
		t.Errorf("it is %v, with %v, and has lost %v", sb.State, sb.Execs, sb.Lost)
	}
	l.engine.Vanish(primary)
	l.until("the loss", func() bool {
		sb, _ := l.ledger.Sandbox("a")
		return len(sb.Execs) == 0
	})
}

// restarted is an engine whose container somebody starts again right after it was seen to have ended.
type restarted struct {
	*runtimetest.Fake
	then func(id string)
}

func (e restarted) InspectContainer(ctx context.Context, id string) (runtime.Container, error) {
	c, err := e.Fake.InspectContainer(ctx, id)
	if err == nil && ended(c) {
		e.then(id)
	}
	return c, err
}

// TestWhatBeginsAfterALookIsNotLost: what was seen says nothing about it.
func TestWhatBeginsAfterALookIsNotLost(t *testing.T) {
	t.Parallel()
	var l *life
	fake := runtimetest.NewFake()
	var once sync.Once
	engine := restarted{fake, func(id string) {
		once.Do(func() {
			_, err := l.ledger.AcceptExec(context.Background(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "new", Command: []string{"x"}}, "boot2")
			if err = errors.Join(fake.StartContainer(context.Background(), id), err); err != nil {
				t.Error(err)
			}
		})
	}}
	l = begin(t, fake, t.TempDir(), func(o *Options) { o.Engine = engine })
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.accept("a", "old")
	primary := l.objects().Containers[0].ID
	fake.Kill(primary, 137)
	l.until("the container runs again", func() bool {
		sb, _ := l.ledger.Sandbox("a")
		_, runs := sb.Execs["new"]
		return runs && l.guests.Connected("a")
	})
	looks := fake.Calls(runtimetest.VerbInventory)
	l.until("some looks", func() bool { return fake.Calls(runtimetest.VerbInventory) > looks+3 })
	if sb, _ := l.ledger.Sandbox("a"); sb.Execs["new"].ID != "new" || len(sb.Lost) > 0 {
		t.Errorf("%v runs, and %v is lost", sb.Execs, sb.Lost)
	}
}
