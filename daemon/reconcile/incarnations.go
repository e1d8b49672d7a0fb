package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// drainSlack is how much longer than its drain an incarnation may take: the request has to
// reach the supervisor, and its end the daemon.
const drainSlack = 5 * time.Second

// drainUntil is how long the stop or removal of a sandbox waits for its running incarnations.
// It is zero if none runs. The wait begins when this daemon first sees the request. A daemon
// that was started meanwhile waits anew; the drain itself does not become longer by that.
func (l *Loop) drainUntil(w *sandboxWork, sb ledger.Sandbox) time.Time {
	if sb.Want == machine.WantRunning {
		w.drainUntil = time.Time{}
		return time.Time{}
	}
	longest, any := time.Duration(0), false
	for _, a := range l.ledger.AgentsIn(sb.ID) {
		if incarnationRuns(sb, a) {
			longest, any = max(longest, agents.RulesOf(a.Spec).Drain.Total()), true
		}
	}
	if !any {
		return time.Time{}
	}
	if w.drainUntil.IsZero() {
		w.drainUntil = l.now().Add(longest + drainSlack)
	}
	return w.drainUntil
}

// incarnationRuns reports whether the incarnation of an agent is an exec that runs.
func incarnationRuns(sb ledger.Sandbox, a ledger.Agent) bool {
	if a.Incarnation == nil {
		return false
	}
	_, runs := sb.Execs[a.Incarnation.ExecID]
	return runs
}

// lostIncarnation says whether the exec of an agent's newest incarnation, whose end is recorded,
// runs. unsought means that it was recorded as lost and may be found: its sandbox was READY, or
// is again, before its supervisor was asked.
func (l *Loop) lostIncarnation(sb ledger.Sandbox, a ledger.Agent) (found, unsought bool) {
	execID := agents.ExecID(a.ID, a.Incarnations)
	_, found = sb.Execs[execID]
	_, lost := sb.Lost[execID]
	return found, lost && l.execs.LostDue(sb.ID)
}

// drainAgent asks the supervisor to drain the incarnation. The end of the incarnation calls
// again.
func (l *Loop) drainAgent(ctx context.Context, a ledger.Agent, w *agentWork) error {
	l.watchIncarnation(a, w) // also if the supervisor cannot be asked
	drains, err := l.agents.Drain(ctx, a)
	if drains {
		w.drained = a.Incarnation.ExecID
	}
	return err
}

// without returns the names of the services that must not run during the incarnation of an
// agent.
func without(a ledger.Agent) []string {
	if a.Incarnation == nil || a.Strategy != agents.ReducedFootprint {
		return nil
	}
	return a.Spec.GetRetry().GetReduced().GetWithoutServices()
}

// withheld returns the services of a sandbox that must not run now, with the reason.
func (l *Loop) withheld(sandboxID string) map[string]string {
	var names map[string]string
	for _, a := range l.ledger.AgentsIn(sandboxID) {
		for _, name := range without(a) {
			if names == nil {
				names = make(map[string]string)
			}
			names[name] = fmt.Sprintf("Service %s is stopped while agent %s runs with a reduced footprint, because its memory ran out.", name, cmp.Or(a.Name, a.ID))
		}
	}
	return names
}

// stillRuns reports whether a service of the sandbox runs, or is being started, that the
// incarnation of the agent must be without.
func stillRuns(sb ledger.Sandbox, a ledger.Agent) bool {
	for _, name := range without(a) {
		if phase := sb.Services[name].Phase; phase == machine.Starting || phase == machine.Up {
			return true
		}
	}
	return false
}

// watchIncarnation enqueues the agent when the exec of its incarnation has ended.
func (l *Loop) watchIncarnation(a ledger.Agent, w *agentWork) {
	if a.Incarnation != nil {
		l.watchExec(a, w, a.Incarnation.ExecID)
	}
}

// watchExec enqueues the agent when an exec has ended, once for each time that it runs: one that
// was lost may be found.
func (l *Loop) watchExec(a ledger.Agent, w *agentWork, execID string) {
	done := l.ledger.ExecDone(execID)
	if w.watched == execID && w.watchedOn == done {
		return
	}
	w.watched, w.watchedOn = execID, done
	l.mu.Lock()
	life := l.ctx
	l.mu.Unlock()
	l.wg.Go(func() {
		select {
		case <-done:
			l.EnqueueAgent(a.ID)
			l.Enqueue(a.SandboxID) // it may wait for this end
		case <-life.Done():
		}
	})
}
