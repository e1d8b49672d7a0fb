package reconcile

import (
	"errors"
	"os"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime/runtimetest"
)

var errNoSource = errors.New("bind source path does not exist")

func TestARemovedSupervisorIsMadeAgainForAStart(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir(), func(o *Options) {
		install := o.InstallSupervisor
		o.InstallSupervisor = func() (string, error) {
			engine.Fail(runtimetest.VerbStartContainer, nil)
			return install()
		}
	})
	if _, err := l.loop.installSupervisor(); err != nil {
		t.Fatal(err)
	}
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.stop("a")
	l.await("a", machine.Stopped)
	if err := os.Remove(l.loop.supervisor); err != nil {
		t.Fatal(err)
	}
	engine.Fail(runtimetest.VerbStartContainer, errNoSource)
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	if err := os.Remove(l.loop.supervisor); err != nil {
		t.Fatal(err)
	}
	l.create("b", runtimetest.FakeImage)
	l.await("b", machine.Ready)
	if _, err := os.Stat(l.loop.supervisor); err != nil {
		t.Errorf("a new sandbox has a supervisor without a file: %v", err)
	}
}

func TestAStartWithoutItsSupervisorNamesTheRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		// next is added to the path of the supervisor of the next daemon, installed to
		// the path of the one that it can install.
		next, installed string
		err             error
		says            string
	}{
		{"", "", errors.New("no space"), "cannot be made again (no space)"},
		{"", "2", nil, "run \"agbox daemon upgrade\""},
		{"2", "2", nil, "remove the sandbox and create it again"},
	} {
		engine := runtimetest.NewFake()
		l := begin(t, engine, t.TempDir())
		if _, err := l.loop.installSupervisor(); err != nil {
			t.Fatal(err)
		}
		l.create("a", runtimetest.FakeImage)
		l.await("a", machine.Ready)
		l.stop("a")
		l.await("a", machine.Stopped)
		removed := l.loop.supervisor
		n := l.next(func(o *Options) {
			o.Supervisor += c.next
			o.InstallSupervisor = func() (string, error) { return removed + c.installed, c.err }
		})
		if err := os.Remove(removed); err != nil {
			t.Fatal(err)
		}
		engine.Fail(runtimetest.VerbStartContainer, errNoSource)
		n.want(n.ledger.RequestResume, "a")
		r := n.await("a", machine.Failed)
		if r.ErrorReason != agboxv1.ErrorReason_HOST_PATH_UNUSABLE.String() || !strings.Contains(r.ErrorMessage, removed) || !strings.Contains(r.ErrorMessage, c.says) {
			t.Errorf("it failed with %s: %s, want %q", r.ErrorReason, r.ErrorMessage, c.says)
		}
	}
}
