package reconcile

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime/runtimetest"
	"github.com/agbox/agbox/spec/policy"
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
			bound := policy.None()
			bound.Devices = false
			n := l.next(func(o *Options) { o.Host.Policy = bound })
			n.want(n.ledger.RequestResume, "a")
			if r := n.await("a", machine.Failed); !strings.Contains(r.ErrorMessage, "forbids security.devices by now") {
				t.Errorf("it failed by %s: %s", r.ErrorReason, r.ErrorMessage)
			}
		})
	}
}
