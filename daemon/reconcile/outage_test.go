package reconcile

import (
	"testing"
	"time"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestAnOutageLastsFromTheLastAnswerToTheNext(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var o outage
	o = o.heard(at(1), time.Time{}, false)
	if o != (outage{}) {
		t.Errorf("an engine that has never answered is in the outage %v", o)
	}
	o = o.heard(at(10), time.Time{}, true)
	o = o.heard(at(20), at(10), false)
	o = o.heard(at(30), at(10), false)
	open := o
	o = o.heard(at(40), at(10), true)
	o = o.heard(at(50), at(40), true)
	if want := (outage{from: at(10), until: at(40)}); o != want {
		t.Errorf("the outage is %v, want %v", o, want)
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

func TestContainersAreShownFromMemoryWhileTheEngineIsAway(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	l.engine.GoDown()
	l.until("degraded", func() bool { return l.loop.Condition(sb).Degraded != "" })
	before := l.engine.Calls(runtimetest.VerbSandboxInventory)
	if shown := l.loop.Containers(t.Context(), sb); len(shown) != 1 {
		t.Errorf("shown are %v, want what was seen last", shown)
	}
	if now := l.engine.Calls(runtimetest.VerbSandboxInventory); now != before {
		t.Error("an engine that is known not to answer is asked all the same")
	}
}
