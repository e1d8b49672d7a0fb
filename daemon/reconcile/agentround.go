package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// incarnationTimeout bounds the start and the end of an incarnation. Both wait for a link
// to the supervisor.
const incarnationTimeout = 10 * time.Second

// describe keeps the file of an agent true, from which it is adopted if the database is lost.
func (l *Loop) describe(ctx context.Context, a ledger.Agent, w *agentWork) {
	now := description{a.Incarnations, a.Parent, a.SandboxID}
	if a.Over() || a.ID == agents.Init || w.described == now {
		return
	}
	if err := l.agents.Describe(ctx, a); err != nil {
		l.log.Warn("meta.json of an agent cannot be written; only a lost database would need it", "agent_id", a.ID, "error", err)
	}
	w.described = now // the next incarnation tries again
}

// agentRound executes steps for one agent until it rests and returns when to look again.
// Zero means when something happens. It holds no engine slot: sandboxes are made and
// stopped in rounds of their own.
func (l *Loop) agentRound(ctx context.Context, id string) time.Time {
	w := l.agentWork(id)
	answered := false
	for range maxSteps {
		a, exists := l.ledger.Agent(id)
		if !exists || ctx.Err() != nil {
			if !exists {
				l.forgetAgent(id)
			}
			return time.Time{}
		}
		if (a.Over() || a.Kill != nil) && w.told != a.LastSequence {
			w.told = a.LastSequence
			l.enqueueKin(id)
		}
		l.describe(ctx, a, w)
		seen, exec, err := l.observeAgent(ctx, a)
		if err != nil {
			return l.agentFailed(ctx, a, w, "observe", err)
		}
		seen.Ensured, seen.EnsuredAt = w.ensured, w.ensuredAt
		seen.Work, seen.WorkAgain = l.workLeft(a, w, seen.Shared)
		seen.Asked = seen.Asked && !answered
		seen.Draining = a.Incarnation != nil && a.Incarnation.ExecID == w.drained
		step := agents.Next(a.Record, seen, agents.RulesOf(a.Spec), l.now())
		if step.Do == agents.Rest {
			w.failures = 0
			if a.Over() {
				l.removeLeft(a)
			}
			if a.Over() && a.Incarnation == nil && !a.Owned {
				l.forgetAgent(id)
				return time.Time{}
			}
			if seen.Exec != agents.ExecUnknown {
				l.watchIncarnation(a, w)
			}
			l.setAgentTrouble(w, l.kept(w))
			return step.Wake
		}
		l.log.Debug("step", "agent_id", id, "verb", step.Do.String(), "why", step.Why)
		switch step.Do {
		case agents.EnsureSandbox:
			if w.ensuredAt = l.now(); !a.Unasked() {
				w.ensured++
			}
		case agents.Start:
			w.ensured = 0
		case agents.Emit:
			if step.Event.GetPause().GetReason() == agboxv1.PauseReason_PAUSE_REASON_ORPHANED {
				w.ensured = 0 // whoever decides that it goes on wants it to be tried
			}
		case agents.Answer:
			answered = true
		}
		waits, err := l.applyAgent(ctx, a, w, step, exec)
		if err != nil {
			return l.agentFailed(ctx, a, w, step.Do.String(), err)
		}
		if len(a.Spec.GetRetry().GetReduced().GetWithoutServices()) > 0 {
			l.Enqueue(a.SandboxID) // services may have to stop, or may run again
		}
		if waits {
			l.watchIncarnation(a, w)
			l.setAgentTrouble(w, "")
			return time.Time{}
		}
	}
	return l.now().Add(retryMin)
}

// observeAgent returns what is known about an agent besides its record. exec is the exec
// of its incarnation, or nil.
func (l *Loop) observeAgent(ctx context.Context, a ledger.Agent) (seen agents.Seen, exec *agboxv1.ExecStatus, err error) {
	seen.Kin = l.ledger.Kin(a)
	sb, living := l.ledger.Sandbox(a.SandboxID)
	if living {
		seen.Sandbox, seen.SandboxError = sandboxState(sb), sb.ErrorMessage
		seen.WasReady, seen.FailedSince, seen.FailedAt = sb.WasReady, sb.FailedSince, sb.StateChangedAt
		if sb.Want == machine.WantDeleted && incarnationRuns(sb, a) {
			seen.Sandbox = agents.SandboxStopping // its work is saved before
		}
		if seen.Gone = sb.Missing(); seen.Gone {
			seen.Busy, seen.Kept = l.companions(a)
		}
		seen.Full = sb.ErrorReason == agboxv1.ErrorReason_FILE_SYSTEM_FULL.String()
		seen.Hopeless = sb.ErrorReason == agboxv1.ErrorReason_SANDBOX_NOT_FOUND.String()
	}
	if !a.Over() {
		seen.Lost, seen.LostAt = l.agents.LostHolder(a)
	}
	if a.Over() && a.Owned {
		seen.Shared = slices.ContainsFunc(l.ledger.AgentsIn(a.SandboxID), func(other ledger.Agent) bool { return !other.Over() })
	}
	seen.Signal = l.ledger.Signal(a.ID)
	if a.EndsItself() {
		if seen.Acknowledged, err = l.ledger.Acknowledged(ctx, a.ID); err != nil {
			return seen, nil, err
		}
	}
	if a.Incarnation == nil {
		seen.Found, seen.Unsought = l.lostIncarnation(sb, a)
		seen.BreakerOpen = (a.State == agents.Pending || a.Incarnations == 0) && !a.Over() && !l.ledger.Breaker(a.Class).Admits(a.ID, l.now())
		return seen, nil, nil
	}
	if _, running := sb.Execs[a.Incarnation.ExecID]; running {
		seen.Exec = agents.ExecRunning
		l.agents.See(a, &seen)
		return seen, nil, nil
	}
	exec, err = l.agents.Exec(ctx, a)
	switch {
	case errdefs.IsNotFound(err):
		seen.Services = stillRuns(sb, a)
		return seen, nil, nil
	case err == nil && exec.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING:
		seen.Exec = agents.ExecRunning // it was accepted a moment ago
	case err == nil:
		seen.Exec = agents.ExecEnded
		seen.Ran = exec.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED // it was started, and is not lost
	}
	return seen, exec, err
}

// companions says whether other agents in the sandbox of an agent have an incarnation or an end
// that is not decided about, and whether one of them owns the sandbox and gets a new one.
func (l *Loop) companions(a ledger.Agent) (busy, kept bool) {
	for _, other := range l.ledger.AgentsIn(a.SandboxID) {
		if other.ID == a.ID || other.Over() {
			continue
		}
		busy = busy || other.Incarnation != nil || other.Undecided
		kept = kept || moves(other)
	}
	return busy, kept
}

// sandboxState is the state of a sandbox as its agents see it.
func sandboxState(sb ledger.Sandbox) agents.Sandbox {
	switch {
	case sb.Want == machine.WantDeleted:
		return agents.SandboxMissing
	case sb.State == machine.Failed:
		return agents.SandboxFailed
	case sb.State == machine.Stopped && sb.IdleStop:
		return agents.SandboxIdle
	case sb.State == machine.Stopped:
		return agents.SandboxStopped
	case sb.Want == machine.WantStopped:
		return agents.SandboxStopping
	case sb.State == machine.Ready:
		return agents.SandboxReady
	}
	return agents.SandboxMaking
}

// applyAgent executes one step. waits means that what it has begun enqueues the agent when
// it is done.
func (l *Loop) applyAgent(ctx context.Context, a ledger.Agent, w *agentWork, step agents.Step, exec *agboxv1.ExecStatus) (waits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, incarnationTimeout)
	defer cancel()
	switch step.Do {
	case agents.EnsureSandbox:
		_, err = l.ledger.RequestResume(ctx, a.SandboxID)
		l.Interrupt(a.SandboxID)
		return true, err
	case agents.Start:
		return false, l.startIncarnation(ctx, a)
	case agents.EndHold:
		return false, l.agents.EndHold(ctx, a, step.Holder)
	case agents.Consume:
		return false, l.agents.Consume(ctx, a)
	case agents.Signal:
		return false, l.ledger.RepeatSignals(ctx, a.ID)
	case agents.Answer:
		return false, l.agents.Answer(ctx, a)
	case agents.TellPause:
		return false, l.agents.TellPause(ctx, a)
	case agents.TellChildren:
		return false, l.agents.TellChildren(ctx, a)
	case agents.Collect:
		return false, l.collect(ctx, a, exec)
	case agents.Kill:
		return true, l.agents.Kill(ctx, a, a.Kill.GetMode())
	case agents.RemoveSandbox:
		_, err = l.ledger.RequestDelete(ctx, a.SandboxID)
		l.Interrupt(a.SandboxID)
		return true, err
	case agents.CompareWork:
		l.compareWork(a, w)
		return true, nil
	case agents.Move:
		if after, err := l.ledger.MoveAgent(ctx, a); err == nil {
			l.Enqueue(after.SandboxID)
		} else {
			return false, err
		}
		l.Interrupt(a.SandboxID)
		return true, nil
	case agents.Emit:
		_, err = l.ledger.EmitAgent(ctx, a.Record, step.Event)
		l.tellSilence(a, step.Event)
	case agents.EndIncarnation:
		return true, l.agents.Reap(ctx, a)
	case agents.Drain:
		return true, l.drainAgent(ctx, a, w)
	case agents.EndFound:
		l.watchExec(a, w, agents.ExecID(a.ID, a.Incarnations))
		return true, l.agents.EndFound(ctx, a)
	}
	return false, err
}

// tellSilence tells the operator about an agent that has been silent for long.
func (l *Loop) tellSilence(a ledger.Agent, ev *agboxv1.AgentEvent) {
	if level := ev.GetGauge().GetLiveness(); level >= agboxv1.AgentLiveness_AGENT_LIVENESS_ESCALATED {
		l.log.Warn("an agent is silent", "agent_id", a.ID, "sandbox_id", a.SandboxID, "exec_id", a.Incarnation.ExecID,
			"state", a.Word(), "liveness", level.String(), "silent", ev.GetGauge().GetSilent().AsDuration())
	}
}

// startIncarnation starts an incarnation, or records that it cannot begin.
func (l *Loop) startIncarnation(ctx context.Context, a ledger.Agent) error {
	ended, err := l.agents.Start(ctx, a)
	if err == nil && ended != nil {
		_, err = l.ledger.EmitAgent(ctx, a.Record, ended)
	}
	return err
}

// collect records the end of an incarnation, whose exec has ended.
func (l *Loop) collect(ctx context.Context, a ledger.Agent, exec *agboxv1.ExecStatus) error {
	a, reports, err := l.agents.End(ctx, a, exec)
	if err != nil {
		return err
	}
	after, err := l.ledger.EmitReports(ctx, a.Record, reports)
	if err == nil {
		l.agents.Forget(after, a.Incarnation)
	}
	return err
}

// agentFailed schedules the retry of a step.
func (l *Loop) agentFailed(ctx context.Context, a ledger.Agent, w *agentWork, verb string, err error) time.Time {
	if ctx.Err() != nil {
		return time.Time{}
	}
	w.failures++
	l.log.Warn("a step of an agent failed", "agent_id", a.ID, "verb", verb, "failures", w.failures, "error", err, "cause", fault.Cause(err))
	l.setAgentTrouble(w, fmt.Sprintf("%s: %v", verb, err))
	return l.now().Add(min(retryMin<<min(w.failures-1, 10), retryMax))
}

// enqueueAgentsOf schedules the agents of a sandbox about which something may be left to do,
// after a round of the sandbox. While it stays READY, those that only wait are left out: a round
// follows each exec, and hundreds may wait.
func (l *Loop) enqueueAgentsOf(sandboxID string) {
	sb, _ := l.ledger.Sandbox(sandboxID)
	now := shown{sb.PendingSequence, sb.Want, l.links.Connected(sandboxID), sandboxState(sb) == agents.SandboxReady}
	l.mu.Lock()
	w := l.sandboxes[sandboxID]
	same := w != nil && w.shown == now && now.ready
	if w != nil {
		w.shown = now
	}
	l.mu.Unlock()
	if !same {
		enqueueEach(l, l.ledger.AgentsIn(sandboxID))
		return
	}
	enqueueEach(l, l.ledger.BusyIn(sandboxID))
}

// enqueueKin schedules the agents for which something follows from the end of an agent. Each of
// its ancestors may wait for it.
func (l *Loop) enqueueKin(id string) {
	for _, a := range slices.Concat(l.ledger.LivingChildren(id), l.ledger.Followers(id), l.ledger.Held(agents.AgentHolder(id)), l.ledger.Ancestors(id)) {
		l.EnqueueAgent(a.ID)
	}
}
