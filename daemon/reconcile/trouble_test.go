package reconcile

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestANetworkThatIsTakenAwayIsNamedWithWhatMendsIt(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	primary, network := l.objects().Containers[0], l.objects().Networks[0]
	says := func(words ...string) func() bool {
		return func() bool {
			l.loop.Enqueue("a")
			said := l.loop.Condition(sb).Degraded
			for _, word := range words {
				if !strings.Contains(said, word) {
					return false
				}
			}
			return len(words) > 0 || said == ""
		}
	}
	l.engine.Detach(primary.ID, true)
	l.until("told how to attach it", says("docker network connect "+network.Name+" "+primary.Name))
	l.engine.Detach(primary.ID, false)
	l.until("well again", says())
	if err := l.engine.RemoveNetwork(t.Context(), network.ID); err != nil {
		t.Fatal(err)
	}
	l.until("told that the network is gone", says("network", "agbox rm a"))
}

func TestTheReasonOfASupervisorThatCannotBeTrustedIsShown(t *testing.T) {
	t.Parallel()
	failed := machine.Observation{ConnectFailed: true, Primary: &runtime.Container{State: runtime.StateRunning}}
	if got := restTrouble(failed, errors.New("it is a link"), nil, ""); got != "it is a link" {
		t.Errorf("it says %q", got)
	}
	if got := restTrouble(failed, nil, nil, ""); !strings.Contains(got, "cannot be reached") {
		t.Errorf("it says %q", got)
	}
	if got := restTrouble(machine.Observation{}, errors.New("it was a link"), nil, ""); got != "" {
		t.Errorf("linked again it says %q", got)
	}
}

func TestARemovedLogFolderOfARunningSandboxIsReported(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	sb := ledger.Sandbox{Record: l.await("a", machine.Ready)}
	set := func(err error) {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		l.guests.logs = err
	}
	for range 2 { // before the second time, nothing else enqueues the sandbox
		set(errors.New("the folder was removed"))
		l.until("told by a resync", func() bool { return l.loop.Condition(sb).Degraded == "the folder was removed" })
		set(nil)
		l.until("well again", func() bool { return l.loop.Condition(sb).Degraded == "" })
	}
}

func TestAMissingSocketOfARunningSandboxIsReportedWithItsRemedy(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	set := func(lost error) {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		l.guests.lost = lost
	}
	set(fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, "no socket").Because(fs.ErrNotExist))
	l.loop.Enqueue("a")
	var failed error
	l.until("the end of waits for the link", func() bool {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		failed = l.guests.failed
		return failed != nil
	})
	want := "Files in " + l.loop.paths.Guest("a") + " were removed, so the daemon cannot reach sandbox a: stop and start the sandbox, which makes them again."
	if !errdefs.IsFailedPrecondition(failed) || errdefs.IsUnavailable(failed) || fault.ReasonOf(failed) != agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE || failed.Error() != want {
		t.Errorf("the waits end with %v, want %q", failed, want)
	}
	sb, _ := l.ledger.Sandbox("a")
	l.until("the reason to be shown", func() bool { return l.loop.Condition(sb).Degraded == want })
	set(nil)
	l.loop.Enqueue("a")
	l.until("well again", func() bool { return l.loop.Condition(sb).Degraded == "" })
}

// TestTheSocketOfASupervisorThatHasEndedWasNotRemoved: the engine starts the container again
// behind our back, and its next supervisor has not opened its socket.
func TestTheSocketOfASupervisorThatHasEndedWasNotRemoved(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	sb := ledger.Sandbox{Record: l.await("a", machine.Ready)}
	set := func(ended bool) {
		l.guests.mu.Lock()
		defer l.guests.mu.Unlock()
		l.guests.ended = ended
		l.guests.lost = fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, "no socket").Because(fs.ErrNotExist)
	}
	set(true)
	l.loop.Enqueue("a")
	l.until("the sandbox to be shown as not reachable", func() bool { return l.loop.Condition(sb).Degraded != "" })
	if got := l.loop.Condition(sb).Degraded; !strings.HasPrefix(got, "The supervisor cannot be reached") {
		t.Errorf("it is shown as %q", got)
	}
	l.guests.mu.Lock()
	failed := l.guests.failed
	l.guests.mu.Unlock()
	if failed != nil {
		t.Errorf("the waits for the link end with %v", failed)
	}
	set(false)
	l.loop.Enqueue("a")
	l.until("the removal to be shown", func() bool { return strings.HasPrefix(l.loop.Condition(sb).Degraded, "Files in ") })
}

// TestAPanicOfARoundStopsOnlyThatRound: a daemon that ended with it would end again at once.
func TestAPanicOfARoundStopsOnlyThatRound(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.guests.copy = func(context.Context) error { panic("a defect") }
	l.createSpec("a", copying(t))
	var sb ledger.Sandbox
	l.until("the panic is shown", func() bool {
		sb, _ = l.ledger.Sandbox("a")
		return strings.Contains(l.loop.Condition(sb).Degraded, "a defect of agbox")
	})
	l.create("b", runtimetest.FakeImage)
	l.await("b", machine.Ready)
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
}

// What an event says of a service shows no value, however it was printed or cut.
func TestLastWordsHaveNoSecretsHoweverTheyArePrinted(t *testing.T) {
	secret := redactor(&agboxv1.CreateSpec{Envs: map[string]string{
		"API_KEY": "top-secret-key", "TLS_KEY": "line-one-of-it\r\nline-two-of-it\rline-three-of-it", "A_TOKEN": "with\ta\x1btab-in-it", "B_TOKEN": "päßwörter",
	}})
	full := func(end string) string { return strings.Repeat(" ", healthBytes-len(end)) + end }
	for name, c := range map[string]struct{ output, want string }{
		"as it is":                       {"key top-secret-key.", "key ***."},
		"unprintable characters in it":   {"top-\x1bsecret\x00-\u200bkey, top-sec\xffret-key", "***, ***"},
		"a line break in another":        {"top-secret\n-key\t!", "top-secret | -key!"},
		"of many lines":                  {"a\r\nline-one-of-it\r\nline-two\x00-of-it\nline-three-of-it\n", "a | *** | *** | ***"},
		"its own unprintable characters": {"with\ta\x1btab-in-it", "***"},
	} {
		if got := outputWords(secret, []byte(c.output)); got != c.want {
			t.Errorf("%s: the output %q is %q, want %q", name, c.output, got, c.want)
		}
		if got := healthWords(secret, c.output); got != c.want {
			t.Errorf("%s: the healthcheck says %q, and %q is shown, want %q", name, c.output, got, c.want)
		}
	}
	for output, want := range map[string]string{
		full("key top-secret-ke") + healthMore: "key",
		full("key top-secret-ke"):              "key",
		full("key p") + "\uFFFD" + healthMore:  "key",
		full("key p\x1b") + healthMore:         "key",
		"ended with top-secret-ke":             "ended with top-secret-ke",
		full("all is good") + healthMore:       "all is good",
	} {
		if got := healthWords(secret, output); got != want {
			t.Errorf("%q is shown, want %q", got, want)
		}
	}
	// The tail of an output begins within a value, and what follows is not shown.
	out := new(tail)
	_, _ = out.Write([]byte("top-secret-key" + strings.Repeat("\x1b", keptBytes-len("-key top-secret-key and this is the end of a service")) + " top-secret-key and this is the end of a service"))
	if got := outputWords(secret, out.bytes()); strings.Contains(got, "key") || !strings.HasSuffix(got, "the end of a service") {
		t.Errorf("of the tail, %q is shown", got)
	}
}
