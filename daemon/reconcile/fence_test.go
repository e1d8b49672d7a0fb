package reconcile

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// withFence sets the mode.
func withFence(mode FenceMode) func(*Options) { return func(o *Options) { o.FenceMode = mode } }

// unguardable makes every rule impossible.
func unguardable(o *Options) {
	o.Fence.(*runtimetest.Fence).Fail(fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_FENCE_UNAVAILABLE, "No rules can be made here."))
}

func TestNothingStartsBeforeItsRulesAgainstTheHostStand(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	mark := engine.OnStart
	var unfenced []string
	engine.OnStart = func(s runtime.ContainerSpec) {
		for _, n := range engine.Networks() {
			if n.ID == s.NetworkID && !slices.Contains(l.engine.Fence.Fenced(), n.Interface) {
				unfenced = append(unfenced, s.Name)
			}
		}
		mark(s)
	}
	l.createServed("a", served())
	l.heal()
	l.await("a", machine.Ready)
	l.awaitService("a", "extra", machine.Up)
	if len(unfenced) > 0 {
		t.Errorf("started without rules: %v", unfenced)
	}
	if n := len(l.engine.Fence.Fenced()); n != 1 {
		t.Errorf("%d interfaces have rules", n)
	}
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	l.until("the removal of the rules", func() bool { return len(l.engine.Fence.Fenced()) == 0 })
}

func TestRulesThatSomebodyRemovedAreMadeAgain(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	if err := l.engine.Fence.Clear(); err != nil {
		t.Fatal(err)
	}
	l.until("the rules", func() bool { return len(l.engine.Fence.Fenced()) == 1 })
	// The next daemon finds a running sandbox without, for example one of an older version.
	l.end()
	if err := l.engine.Fence.Clear(); err != nil {
		t.Fatal(err)
	}
	n := l.next()
	n.until("the rules of a sandbox from before", func() bool { return len(n.engine.Fence.Fenced()) == 1 })
	// After a restart of the host there are none. The next start makes them.
	n.stop("a")
	n.await("a", machine.Stopped)
	if err := n.engine.Fence.Clear(); err != nil {
		t.Fatal(err)
	}
	n.want(n.ledger.RequestResume, "a")
	n.await("a", machine.Ready)
	if got := n.engine.Fence.Fenced(); len(got) != 1 {
		t.Errorf("a sandbox that was started again has the rules %v", got)
	}
}

func TestTheNextDaemonRemovesTheRulesThatAKilledOneLeft(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.end()
	for _, c := range l.engine.Containers() {
		l.engine.Vanish(c.ID)
	}
	for _, n := range l.engine.Networks() {
		if err := l.engine.RemoveNetwork(t.Context(), n.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.engine.Fence.Fenced(); len(got) != 1 {
		t.Fatalf("the rules are %v", got)
	}
	n := l.next()
	n.until("the removal of the rules", func() bool { return len(n.engine.Fence.Fenced()) == 0 })
}

func TestHostAccessIsLiftedForASandboxOrForAll(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	spec := &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Security: &agboxv1.SecuritySpec{AllowHost: new(bool)}}
	*spec.Security.AllowHost = true
	if _, err := l.ledger.Create(t.Context(), "open", spec); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue("open")
	l.await("open", machine.Ready)
	if got := l.engine.Fence.Fenced(); len(got) > 0 {
		t.Errorf("a sandbox with allow_host has rules: %v", got)
	}
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	if got := l.engine.Fence.Fenced(); len(got) != 1 {
		t.Errorf("another one has the rules %v", got)
	}
	off := l.next(withFence(FenceOff))
	off.create("b", runtimetest.FakeImage)
	off.await("b", machine.Ready)
	off.until("a fence without rules", func() bool { return len(off.engine.Fence.Fenced()) == 0 })
}

func TestWhereNoRulesCanBeMadeSandboxesWorkUnlessTheyAreRequired(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir(), unguardable)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	if err := l.loop.Unguarded(); err == nil || !strings.Contains(err.Error(), "No rules can be made here.") {
		t.Errorf("unguarded because of %v", err)
	}
	strict := l.next(withFence(FenceRequired), unguardable)
	strict.create("b", runtimetest.FakeImage)
	r := strict.await("b", machine.Failed)
	if r.ErrorReason != agboxv1.ErrorReason_HOST_FENCE_UNAVAILABLE.String() {
		t.Errorf("it failed because of %s: %s", r.ErrorReason, r.ErrorMessage)
	}
	strict.until("the trouble of the sandbox from before", func() bool {
		sb, _ := strict.ledger.Sandbox("a")
		return strings.Contains(strict.loop.Condition(sb).Degraded, "No rules can be made here.")
	})
	if sb, _ := strict.ledger.Sandbox("a"); sb.State != machine.Ready {
		t.Errorf("the sandbox from before is %s", sb.State)
	}
}
