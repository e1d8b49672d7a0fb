package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// ahead makes a sandbox for a pool. It returns its id, and what somebody may ask for who gets it.
func (l *life) ahead() (id string, wish *agboxv1.CreateSpec) {
	l.t.Helper()
	spec := &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Command: []string{"serve"}, Services: []*agboxv1.ServiceSpec{{Name: "db", Image: runtimetest.FakeImage}}}
	p, err := l.ledger.SetPool(l.t.Context(), "stack", 1, spec)
	if err != nil {
		l.t.Fatal(err)
	}
	l.loop.EnqueuePool(p.ID)
	wish = proto.CloneOf(spec)
	wish.Name, wish.Envs, wish.PostCreate = "demo", map[string]string{"API_KEY": "canary"}, []string{"true"}
	return l.stocked(p.ID, 1)[0], wish
}

func TestASandboxThatWasMadeAheadIsTakenOnce(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		l := begin(t, runtimetest.NewFake(), t.TempDir())
		id, wish := l.ahead()
		if boot, err := readBoot(l.loop.paths.GuestBoot(id)); err != nil || !boot.GetHoldCommand() {
			t.Errorf("its own command is not held back: %v, %v", boot, err)
		}
		made := l.containers(id)
		if _, err := l.ledger.Take(t.Context(), id, wish, ledger.RequestKey{}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.ledger.Take(t.Context(), id, wish, ledger.RequestKey{}); !errors.Is(err, ledger.ErrTaken) {
			t.Errorf("it is taken twice: %v", err)
		}
		if killed {
			l = l.next()
		}
		l.loop.Enqueue(id)
		r := l.await(id, machine.Ready)
		if r.Name != "demo" || r.Pool != "" || !r.WasReady {
			t.Errorf("it is %+v", r)
		}
		if now := l.containers(id); !slices.Equal(now, made) {
			t.Errorf("it has the containers %v, and had %v", now, made)
		}
		l.guests.mu.Lock()
		did, boot, env := slices.Clone(l.guests.did), l.guests.boot, l.guests.env
		l.guests.mu.Unlock()
		if i, j := slices.Index(did, "configure"), slices.Index(did, "hook"); i < 0 || j < i || !slices.Contains(did[i:j], "release") {
			t.Errorf("what was done is %v", did)
		}
		if !slices.Contains(env, "API_KEY=canary") || !slices.Contains(env, "HOSTNAME=demo") || !slices.Equal(boot.GetSecretEnvs(), []string{"API_KEY"}) {
			t.Errorf("the supervisor was told %v and %v", boot, env)
		}
		if raw, err := os.ReadFile(l.loop.paths.GuestBoot(id)); err != nil || bytes.Contains(raw, []byte("canary")) {
			t.Errorf("the boot configuration has a secret, or %v", err)
		}
		l.stop(id)
		l.await(id, machine.Stopped)
		l.guests.mu.Lock()
		l.guests.env = nil
		l.guests.mu.Unlock()
		l.want(l.ledger.RequestResume, id)
		l.await(id, machine.Ready)
		l.guests.mu.Lock()
		if !slices.Contains(l.guests.env, "API_KEY=canary") {
			t.Errorf("the next life of the supervisor was told %v", l.guests.env)
		}
		l.guests.mu.Unlock()
	}
}

// TestNothingIsReadyBeforeItsSupervisorIsTold: what was taken would serve commands without their environment.
func TestNothingIsReadyBeforeItsSupervisorIsTold(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	id, wish := l.ahead()
	deaf := func(calls int) {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		l.guests.deaf, l.guests.env = calls, nil
	}
	told := func(when string) {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		if !slices.Contains(l.guests.env, "API_KEY=canary") {
			t.Errorf("%s its supervisor was told %v", when, l.guests.env)
		}
	}
	deaf(2)
	if _, err := l.ledger.Take(t.Context(), id, wish, ledger.RequestKey{}); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue(id)
	l.await(id, machine.Ready)
	told("at first")
	l.stop(id)
	l.await(id, machine.Stopped)
	deaf(2)
	l.want(l.ledger.RequestResume, id)
	l.await(id, machine.Ready)
	told("after another start")
	l.guests.mu.Lock()
	l.guests.linked[id] = false // its supervisor was started again
	l.guests.mu.Unlock()
	deaf(2)
	l.loop.Enqueue(id)
	l.until("its supervisor is told anew", func() bool {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		return slices.Contains(l.guests.env, "API_KEY=canary")
	})
}

// TestASandboxWhoseSupervisorCannotBeToldIsLookedAt: it says why, and what else happens to it is seen.
func TestASandboxWhoseSupervisorCannotBeToldIsLookedAt(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	id, wish := l.ahead()
	if _, err := l.ledger.Take(t.Context(), id, wish, ledger.RequestKey{}); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue(id)
	l.await(id, machine.Ready)
	l.guests.mu.Lock()
	l.guests.linked[id], l.guests.deaf = false, 1<<30 // its supervisor was started again
	l.guests.mu.Unlock()
	l.loop.Enqueue(id)
	l.until("the reason why it serves nobody", func() bool {
		sb, _ := l.ledger.Sandbox(id)
		return strings.Contains(l.loop.Condition(sb).Degraded, "it does not answer in time")
	})
	for _, c := range l.engine.Containers() {
		if c.SandboxID == id && c.Service == "db" {
			l.engine.Kill(c.ID, 1)
		}
	}
	l.awaitService(id, "db", machine.Down)
}

// TestWhoseASandboxIsIsToldOnce: a copy that takes long and is repeated is no supervisor that stays silent.
func TestWhoseASandboxIsIsToldOnce(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	l := begin(t, runtimetest.NewFake(), t.TempDir(), func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	id, wish := l.ahead()
	wish.Copies = copying(t).GetCopies()
	l.guests.mu.Lock()
	l.guests.copy = func(context.Context) error {
		if later.Swap(int64(2*patience)) > 0 {
			return nil
		}
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE, "The copy was interrupted.")
	}
	l.guests.mu.Unlock()
	if _, err := l.ledger.Take(t.Context(), id, wish, ledger.RequestKey{}); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue(id)
	l.await(id, machine.Ready)
}

// containers returns the ids of the containers of a sandbox.
func (l *life) containers(id string) (all []string) {
	l.t.Helper()
	inv, err := l.engine.Inventory(l.t.Context(), l.loop.opts.InstallID)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range inv.Containers {
		if c.SandboxID == id && c.Role != runtime.RoleImageReader {
			all = append(all, c.ID)
		}
	}
	slices.Sort(all)
	return all
}

// stocked waits until a pool has n sandboxes that are ready, and nothing else.
func (l *life) stocked(pool string, n int) []string {
	l.t.Helper()
	var has []string
	l.until(fmt.Sprintf("%d sandboxes that were made ahead", n), func() bool {
		has = nil
		for _, sb := range l.ledger.Ahead(pool) {
			if sb.State != machine.Ready {
				return false
			}
			has = append(has, sb.ID)
		}
		return len(has) == n
	})
	return has
}

func (l *life) setPool(size int, image string) ledger.Pool {
	l.t.Helper()
	p, err := l.ledger.SetPool(l.t.Context(), "stack", size, &agboxv1.CreateSpec{Image: image})
	if err != nil {
		l.t.Fatal(err)
	}
	l.loop.EnqueuePool(p.ID)
	return p
}

func TestAPoolKeepsItsSize(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	p := l.setPool(3, runtimetest.FakeImage)
	has := l.stocked(p.ID, 3)
	if _, err := l.ledger.Take(t.Context(), has[0], &agboxv1.CreateSpec{Image: runtimetest.FakeImage}, ledger.RequestKey{}); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue(has[0])
	l.loop.EnqueuePool(p.ID)
	if now := l.stocked(p.ID, 3); slices.Contains(now, has[0]) {
		t.Errorf("what somebody has is in the pool: %v", now)
	}
	l.engine.Kill(l.containers(has[1])[0], 137) // somebody ends one
	l.until("another one in its place", func() bool { return !slices.Contains(l.stocked(p.ID, 3), has[1]) })
	l = l.next() // a daemon that is killed loses none
	before := l.stocked(p.ID, 3)
	l.setPool(1, runtimetest.FakeImage)
	if left := l.stocked(p.ID, 1); !slices.Contains(before, left[0]) {
		t.Errorf("of %v there is left %v", before, left)
	}
	l.engine.AddImage("another:1", runtime.Image{})
	other := l.setPool(2, "another:1")
	l.stocked(other.ID, 2)
	l.stocked(p.ID, 0) // they are stale
	if _, err := l.ledger.RemovePool(t.Context(), "stack"); err != nil {
		t.Fatal(err)
	}
	l.stocked(other.ID, 0)
	l.await(has[0], machine.Ready)
	l.want(l.ledger.RequestDelete, has[0])
	l.await(has[0], machine.Deleted)
	l.until("nothing is left", func() bool { return len(l.ledger.Sandboxes()) == 0 })
	l.nothingLeft()
}

func TestAPoolGivesItsMemoryBack(t *testing.T) {
	t.Parallel()
	var percent, later atomic.Int64
	percent.Store(50)
	l := begin(t, runtimetest.NewFake(), t.TempDir(), func(o *Options) {
		o.AvailableMemory = func() int { return int(percent.Load()) }
		o.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	p := l.setPool(2, runtimetest.FakeImage)
	l.stocked(p.ID, 2)
	percent.Store(scarceMemory - 1)
	l.stocked(p.ID, 0)
	if why := l.loop.PoolTrouble(p, 0); !strings.Contains(why, "memory") {
		t.Errorf("it says %q", why)
	}
	percent.Store(enoughMemory)
	l.loop.EnqueuePool(p.ID)
	l.until("it is not short of memory", func() bool { return strings.Contains(l.loop.PoolTrouble(p, 0), "a while ago") })
	l.stocked(p.ID, 0) // the pool may have been what took the memory
	later.Store(int64(scarcePauseMin))
	l.loop.EnqueuePool(p.ID)
	l.stocked(p.ID, 2)
	percent.Store(scarceMemory - 1)
	l.stocked(p.ID, 0)
	percent.Store(enoughMemory)
	later.Store(int64(2 * scarcePauseMin))
	l.loop.EnqueuePool(p.ID)
	l.until("it is not short of memory", func() bool { return strings.Contains(l.loop.PoolTrouble(p, 0), "a while ago") })
	l.stocked(p.ID, 0) // longer than before
	later.Store(int64(4 * scarcePauseMin))
	l.loop.EnqueuePool(p.ID)
	l.stocked(p.ID, 2)
}

// TestWhatIsDegradedIsNotKept: it is READY and serves nobody.
func TestWhatIsDegradedIsNotKept(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	p := l.setPool(1, runtimetest.FakeImage)
	first := l.stocked(p.ID, 1)[0]
	l.guests.mu.Lock()
	l.guests.logs = errors.New("the folder was removed")
	l.guests.mu.Unlock()
	l.until("it is removed", func() bool {
		sb, living := l.ledger.Sandbox(first)
		return !living || sb.Want == machine.WantDeleted
	})
	if why := l.loop.PoolTrouble(p, 0); why != "the folder was removed" {
		t.Errorf("the pool says %q", why)
	}
}

func TestAPoolOfWhatCannotBeMadeWaits(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	p := l.setPool(2, "no-such-image")
	l.until("its trouble", func() bool { return strings.Contains(l.loop.PoolTrouble(p, 0), "no-such-image") })
}

func TestWhatWasMadeOfAnotherImageIsNotHandedOut(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.engine.AddImage("moving:1", runtime.Image{})
	p := l.setPool(1, "moving:1")
	first := l.stocked(p.ID, 1)[0]
	fits := func(id string) bool {
		sb, living := l.ledger.Sandbox(id)
		return living && l.loop.Fit(t.Context(), sb, sb.Spec)
	}
	l.until("it can be handed out", func() bool { return fits(first) })
	l.engine.AddImage("moving:1", runtime.Image{})
	if fits(first) {
		t.Error("one of an older image is handed out")
	}
	l.loop.EnqueuePool(p.ID)
	var second string
	l.until("another one in its place", func() bool { second = l.stocked(p.ID, 1)[0]; return second != first })
	l.until("it can be handed out", func() bool { return fits(second) })
	l.engine.AddImage("moving:1", runtime.Image{})
	l.loop.Poke() // nobody asks for one
	l.until("another one in its place", func() bool { return l.stocked(p.ID, 1)[0] != second })
}

// TestAPoolRestsWhileSomebodyWaits: the engine does not make the next one beside the one that was just asked for.
func TestAPoolRestsWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	var later time.Duration
	l, s := &Loop{now: func() time.Time { return begun.Add(later) }}, new(stock)
	for _, c := range []struct{ now, used, due time.Duration }{
		{0, -stockRest, 0},
		{0, 0, stockRest},
		{stockRest - 1, 0, stockRest},
		{stockRest, 0, 0},
		{stockRest, stockRest, 2 * stockRest},
		{2 * stockRest, 2 * stockRest, 3 * stockRest},
		{3 * stockRest, 3 * stockRest, 4 * stockRest},
		{stockRest + stockRestMax, stockRest + stockRestMax, 0}, // somebody asks all the time
		{stockRest + stockRestMax, stockRest + stockRestMax, 2*stockRest + stockRestMax},
	} {
		later = c.now
		due := l.makeAt(ledger.Pool{UsedAt: begun.Add(c.used)}, s)
		if got, want := due.After(l.now()), c.due > 0; got != want || got && !due.Equal(begun.Add(c.due)) {
			t.Errorf("at %v after a request at %v the next one is due %v, want %v", c.now, c.used, due.Sub(begun), c.due)
		}
	}
}

// TestAPoolSaysWhyNobodyGetsWhatItHas, and that of what was created last is given up.
func TestAPoolSaysWhyNobodyGetsWhatItHas(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.engine.AddImage("named:1", runtime.Image{Env: []string{"HOSTNAME=own"}})
	named := &agboxv1.CreateSpec{Image: "named:1", Name: "demo"}
	for _, c := range []struct {
		ahead, want *agboxv1.CreateSpec
		unnamed     error
		why         string
	}{
		{&agboxv1.CreateSpec{Image: runtimetest.FakeImage}, &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Name: "demo"}, fs.ErrPermission, "permission denied"},
		{&agboxv1.CreateSpec{Image: runtimetest.FakeImage, Security: &agboxv1.SecuritySpec{ReadOnlyRoot: new(true)}}, named, nil, "read-only"},
		{&agboxv1.CreateSpec{Image: "named:1"}, named, nil, "sets HOSTNAME"},
	} {
		l.guests.mu.Lock()
		l.guests.unnamed = c.unnamed
		l.guests.mu.Unlock()
		auto, err := l.ledger.SetPool(t.Context(), ledger.AutoPool, 1, c.ahead)
		if err != nil {
			t.Fatal(err)
		}
		l.loop.EnqueuePool(auto.ID)
		sb, _ := l.ledger.Sandbox(l.stocked(auto.ID, 1)[0])
		l.until("the reason why nobody gets it", func() bool {
			return !l.loop.Fit(t.Context(), sb, c.want) && strings.Contains(l.loop.PoolTrouble(auto, 0), c.why)
		})
		l.loop.EnqueuePool(auto.ID)
		l.stocked(auto.ID, 0)
	}
}

func TestAPoolShrinksWhenNobodyAsks(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	l := begin(t, runtimetest.NewFake(), t.TempDir(), func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	p := l.setPool(3, runtimetest.FakeImage)
	auto, err := l.ledger.SetPool(t.Context(), ledger.AutoPool, 2, &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Hostname: "other"})
	if err != nil {
		t.Fatal(err)
	}
	l.loop.EnqueuePool(auto.ID)
	l.stocked(p.ID, 3)
	l.stocked(auto.ID, 2)
	later.Store(int64(poolIdle))
	l.loop.Poke()
	l.stocked(p.ID, 1)
	l.stocked(auto.ID, 0)
	later.Store(0)
	l.loop.EnqueuePool(p.ID)
	l.stocked(p.ID, 3)
}
