package reconcile

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestAPolicyForbidsToStartWhatItWouldNotLetBeCreated(t *testing.T) {
	t.Parallel()
	devices := &agboxv1.SecuritySpec{Devices: []string{"/dev/null"}}
	for name, change := range map[string]func(*agboxv1.CreateSpec){
		"the primary": func(s *agboxv1.CreateSpec) { s.Security = devices },
		"a service":   func(s *agboxv1.CreateSpec) { s.Services[0].Security = devices },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := begin(t, runtimetest.NewFake(), t.TempDir())
			spec := served()
			change(spec)
			l.createServed("a", spec)
			l.heal()
			l.await("a", machine.Ready)
			l.stop("a")
			l.await("a", machine.Stopped)
			bound := hostfiles.NoPolicy()
			bound.Devices = false
			n := l.next(func(o *Options) { o.Host.Policy = bound })
			n.want(n.ledger.RequestResume, "a")
			if r := n.await("a", machine.Failed); !strings.Contains(r.ErrorMessage, "forbids security.devices by now") {
				t.Errorf("it failed by %s: %s", r.ErrorReason, r.ErrorMessage)
			}
		})
	}
}

func TestTheDefaultOfMemoryLeavesRoomToTheHost(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		set        MemoryDefault
		host, want int64
	}{
		{MemoryDefault{}, 10 * gib, 0},
		{MemoryDefault{Percent: 80}, 0, 0},
		{MemoryDefault{Percent: 80}, 100 * gib, 80 * gib},
		{MemoryDefault{Percent: 100}, 100 * gib, 99 * gib},
		{MemoryDefault{Percent: 80}, 4 * gib, 3 * gib},
		{MemoryDefault{Percent: 80}, gib, gib / 2},
		{MemoryDefault{Percent: 10}, 100 * gib, 10 * gib},
		{MemoryDefault{Bytes: 5 * gib}, gib, 5 * gib},
	} {
		if got := c.set.Of(c.host); got != c.want {
			t.Errorf("%+v of %d bytes is %d, want %d", c.set, c.host, got, c.want)
		}
	}
}

func TestContainersHaveALimitOfMemoryUnlessTheSpecLiftsIt(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir(), func(o *Options) { o.MemoryDefault = MemoryDefault{Percent: 50} })
	const mib = 1 << 20
	for id, c := range map[string]struct {
		asked string
		want  runtime.MadeLimits
	}{
		"default":   {"", runtime.MadeLimits{Memory: 4 << 30, MemoryByDefault: true, PIDs: 4096}},
		"own":       {"64m", runtime.MadeLimits{Memory: 64 * mib, PIDs: 4096}},
		"unlimited": {"unlimited", runtime.MadeLimits{PIDs: 4096}},
	} {
		l.createSpec(id, &agboxv1.CreateSpec{
			Image: runtimetest.FakeImage, MemoryLimit: c.asked,
			Services: []*agboxv1.ServiceSpec{{Name: "db", Image: runtimetest.FakeImage, MemoryLimit: c.asked}},
		})
		l.await(id, machine.Ready)
		seen := 0
		for _, made := range l.objects().Containers {
			if made.SandboxID != id {
				continue
			}
			if seen++; made.Limits != c.want {
				t.Errorf("%s %s has %+v, want %+v", id, made.Role, made.Limits, c.want)
			}
		}
		if seen != 2 {
			t.Errorf("%s has %d containers", id, seen)
		}
	}
}
