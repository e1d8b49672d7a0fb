package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
)

// comparisons bounds the workspaces that are compared at the same time.
const comparisons = 4

// compareTimeout bounds the comparison of a workspace. workAgain is when one with work is compared
// again although nothing was brought home: somebody may have undone the work in the sandbox.
// failedAgain is when one is that could not be compared. homeFor is how long one without work may be
// removed without another comparison.
const (
	compareTimeout = 10 * time.Minute
	workAgain      = time.Hour
	failedAgain    = time.Minute
	homeFor        = time.Minute
)

// workLeft returns what is known about work in the own sandbox of an agent that is over. It says
// once that there is none, and forgets all that it knew of a shared sandbox: somebody may work there.
func (l *Loop) workLeft(a ledger.Agent, w *agentWork, shared bool) (agents.Work, time.Time) {
	l.mu.Lock()
	left := w.left
	if !left.comparing && (shared || left.why == "") {
		w.left = workLeft{}
	}
	l.mu.Unlock()
	if left.comparing {
		return agents.WorkCompared, time.Time{}
	}
	sb, exists := l.ledger.Sandbox(a.SandboxID)
	used := exists && !sb.LastUse.Equal(left.used)
	switch {
	case shared, left.again.IsZero(), l.review.Advanced(a.SandboxID) != left.advanced:
		return agents.WorkUnknown, time.Time{}
	case left.still && !used:
		return agents.WorkLeft, time.Time{} // its next start calls again
	case !l.now().Before(left.again), left.why == "" && used:
		return agents.WorkUnknown, time.Time{}
	case left.why == "":
		return agents.WorkHome, time.Time{}
	}
	return agents.WorkLeft, left.again
}

// kept says why the own sandbox of an agent that is over is kept; empty if it is not.
func (l *Loop) kept(w *agentWork) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.left.why
}

// compareWork begins to look for work in the own sandbox of an agent that is over, and enqueues the
// agent when that is known. The engine and the supervisor may be slow, so no round waits for it.
func (l *Loop) compareWork(a ledger.Agent, w *agentWork) {
	l.mu.Lock()
	before := w.left
	w.left.comparing = true
	life := l.ctx
	l.mu.Unlock()
	l.wg.Go(func() {
		select {
		case l.comparing <- struct{}{}:
		case <-life.Done():
			return
		}
		left := l.compared(life, a, before.failures)
		<-l.comparing
		if left.why != "" && left.why != before.why && life.Err() == nil {
			l.log.Info("the sandbox of an agent that has ended is kept", "agent_id", a.ID, "sandbox_id", a.SandboxID, "why", left.why)
		}
		l.mu.Lock()
		w.left = left
		l.mu.Unlock()
		l.EnqueueAgent(a.ID)
	})
}

// compared looks for work in the own sandbox of an agent. failures is how often in a row that could
// not be done.
func (l *Loop) compared(ctx context.Context, a ledger.Agent, failures int) workLeft {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	left := workLeft{advanced: l.review.Advanced(a.SandboxID), again: l.now().Add(homeFor)}
	sb, exists := l.ledger.Sandbox(a.SandboxID)
	if !exists {
		return left
	}
	left.used = sb.LastUse
	still := sb.State == machine.Stopped || sb.State == machine.Failed
	work, advice, err := l.unbrought(ctx, sb, still)
	switch {
	case err != nil:
		left.failures = failures + 1
		left.again = l.now().Add(min(failedAgain<<min(failures, 10), workAgain))
		left.why = fmt.Sprintf("Its sandbox is kept: its workspace could not be compared (%v). `agbox rm %s` removes it.", err, a.SandboxID)
		l.log.Debug("a workspace cannot be compared", "agent_id", a.ID, "sandbox_id", a.SandboxID, "error", err, "cause", fault.Cause(err))
	case work != "":
		left.again, left.still = l.now().Add(workAgain), still
		left.why = fmt.Sprintf("Its sandbox is kept, with work that was not brought home: %s. %s `agbox rm %s` removes the sandbox.", work, advice, a.SandboxID)
	}
	return left
}

// unbrought returns which work a sandbox has that was not brought home, and how that comes. A panic, for example over
// what a hostile sandbox says, is an error, as in a round.
func (l *Loop) unbrought(ctx context.Context, sb ledger.Sandbox, still bool) (work, advice string, err error) {
	defer func() {
		if r := recover(); r != nil {
			l.log.Error("a comparison panicked; it is repeated", "sandbox_id", sb.ID, "error", fmt.Sprintf("%v\n%s", r, debug.Stack()))
			err = errors.New("a defect of agbox, which `agbox daemon logs` describes")
		}
	}()
	var open func(ctx context.Context, path string) (io.ReadCloser, error)
	if still {
		open = func(ctx context.Context, path string) (io.ReadCloser, error) { return l.Archive(ctx, sb, path) }
	}
	return l.review.Unbrought(ctx, sb.ID, open)
}
