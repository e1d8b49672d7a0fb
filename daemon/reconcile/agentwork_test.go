package reconcile

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// scriptedReview is a Review whose answer a test sets.
type scriptedReview struct {
	work, version string
	err           error
	panics        bool
}

func (r *scriptedReview) Unbrought(context.Context, string, func(context.Context, string) (io.ReadCloser, error)) (string, string, error) {
	if r.panics {
		panic("a defect")
	}
	return r.work, "`agbox apply` brings it.", r.err
}

func (r *scriptedReview) Advanced(string) string { return r.version }

// comparer returns a loop that does not run, beside one that has made sandbox a, with a clock and a
// review of its own.
func comparer(t *testing.T) (l *life, loop *Loop, review *scriptedReview, now *time.Time) {
	t.Helper()
	l = begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	review, now = new(scriptedReview), new(time.Time)
	*now = time.Now()
	loop = New(Options{Ledger: l.ledger, Review: review, Now: func() time.Time { return *now }, Log: l.loop.log})
	loop.ctx = t.Context()
	return l, loop, review, now
}

func inSandbox(id string) (a ledger.Agent) {
	a.SandboxID = id
	return a
}

// compareNow compares the work of an agent whose sandbox is a.
func compareNow(loop *Loop, w *agentWork) {
	loop.compareWork(inSandbox("a"), w)
	loop.wg.Wait()
}

// TestThatAllWorkIsHomeHoldsForOneRemoval: somebody may have worked in the sandbox since.
func TestThatAllWorkIsHomeHoldsForOneRemoval(t *testing.T) {
	t.Parallel()
	l, loop, _, now := comparer(t)
	a, w := inSandbox("a"), new(agentWork)
	known := func(what string, want agents.Work, shared bool) {
		t.Helper()
		if got, _ := loop.workLeft(a, w, shared); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	known("not compared", agents.WorkUnknown, false)
	compareNow(loop, w)
	known("compared", agents.WorkHome, false)
	known("again", agents.WorkUnknown, false)
	compareNow(loop, w)
	known("shared", agents.WorkUnknown, true)
	known("not shared any more", agents.WorkUnknown, false)
	compareNow(loop, w)
	*now = now.Add(homeFor)
	known("long after", agents.WorkUnknown, false)
	compareNow(loop, w)
	l.stop("a")
	l.await("a", machine.Stopped)
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	known("used since", agents.WorkUnknown, false)
}

// TestWorkThatIsLeftIsComparedAgain: when something came home, after an hour, or if the sandbox was
// shared.
func TestWorkThatIsLeftIsComparedAgain(t *testing.T) {
	t.Parallel()
	_, loop, review, now := comparer(t)
	review.work = "changed files"
	a, w := inSandbox("a"), new(agentWork)
	known := func(what string, want agents.Work, shared bool) {
		t.Helper()
		if got, _ := loop.workLeft(a, w, shared); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	compareNow(loop, w)
	known("compared", agents.WorkLeft, false)
	known("again", agents.WorkLeft, false)
	if why := loop.kept(w); !strings.Contains(why, "changed files. `agbox apply` brings it. `agbox rm a` removes the sandbox.") {
		t.Errorf("it is kept: %q", why)
	}
	review.version = "next"
	known("something came home", agents.WorkUnknown, false)
	compareNow(loop, w)
	*now = now.Add(workAgain)
	known("an hour later", agents.WorkUnknown, false)
	compareNow(loop, w)
	known("shared", agents.WorkUnknown, true)
	known("not shared any more", agents.WorkUnknown, false)
}

// TestTheWorkOfAStoppedSandboxIsComparedOnce: it cannot change before the sandbox starts again.
func TestTheWorkOfAStoppedSandboxIsComparedOnce(t *testing.T) {
	t.Parallel()
	l, loop, review, now := comparer(t)
	review.work = "changed files"
	l.stop("a")
	l.await("a", machine.Stopped)
	a, w := inSandbox("a"), new(agentWork)
	compareNow(loop, w)
	*now = now.Add(2 * workAgain)
	if got, again := loop.workLeft(a, w, false); got != agents.WorkLeft || !again.IsZero() {
		t.Errorf("after two hours: %v until %v", got, again)
	}
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	if got, _ := loop.workLeft(a, w, false); got != agents.WorkUnknown {
		t.Errorf("it was started: %v", got)
	}
}

// TestAComparisonThatFailsIsRepeatedMoreAndMoreRarely, also one that panics over what the sandbox
// says.
func TestAComparisonThatFailsIsRepeatedMoreAndMoreRarely(t *testing.T) {
	t.Parallel()
	_, loop, review, now := comparer(t)
	review.err = errors.New("no answer")
	a, w := inSandbox("a"), new(agentWork)
	for i, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		review.panics = i%2 == 1
		compareNow(loop, w)
		got, again := loop.workLeft(a, w, false)
		if got != agents.WorkLeft || again.Sub(*now) != pause*time.Minute || !strings.Contains(loop.kept(w), "could not be compared") {
			t.Errorf("%v again in %v, want %d min: %q", got, again.Sub(*now), pause, loop.kept(w))
		}
		*now = again
	}
}
