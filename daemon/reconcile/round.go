package reconcile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
)

const (
	// lookTimeout bounds a look at the engine. One hung container can block it.
	lookTimeout = 10 * time.Second
	// verbTimeout bounds a mutating verb. An engine under load takes seconds.
	verbTimeout = time.Minute
	// pullTimeout bounds the pull of an image.
	pullTimeout = 30 * time.Minute
	// connectTimeout bounds one attempt to reach a supervisor.
	connectTimeout = 2 * time.Second
	// stopGrace is the time between the engine's stop signal and its kill. The
	// supervisor's own grace for execs is shorter.
	stopGrace = 10 * time.Second
	// removeGrace is stopGrace for a removal.
	removeGrace = 2 * time.Second
	// retryMin and retryMax bound the pause before a failed step is retried.
	retryMin, retryMax = 200 * time.Millisecond, 10 * time.Second
	// maxSteps ends a round that does not come to rest. The next round continues.
	maxSteps = 64
)

// sandboxRound executes steps for one sandbox until it rests and returns when to look
// again. Zero means when something happens.
func (l *Loop) sandboxRound(ctx context.Context, turn *workTurn) time.Time {
	var w *sandboxWork
	var o machine.Observation
	for range maxSteps {
		sb, living := l.ledger.Sandbox(turn.ID)
		if !living {
			l.forget(turn.ID)
			return time.Time{}
		}
		if ctx.Err() != nil {
			return time.Time{}
		}
		if w == nil {
			w = l.begin(turn)
		}
		if w.startedFor != sb.PendingSequence {
			w.startedAt, w.startedFor = time.Time{}, sb.PendingSequence
			o.Looked = false // it may run, so this look counts as the start
		}
		if sb.Want != machine.WantRunning || sb.State == machine.Failed {
			l.halt(w)
		}
		l.recall(w, &o)
		o.Connected = l.links.Connected(w.id)
		o.MainDue = l.execs.Main(w.id) != nil
		o.LostDue = l.execs.LostDue(w.id)
		o.Inherited = sb.PendingSequence <= sb.Inherited
		o.HandedOver = l.handedOver
		o.StartedAt = w.startedAt
		o.DrainUntil = l.drainUntil(w, sb)
		step := machine.Next(sb.Record, o, l.rules(sb), l.now())
		if step.Do == machine.Rest {
			w.failures = 0
			l.watchHooks(w, sb)
			if o.ConnectFailed && w.unlinked != nil {
				// The container runs, so no link will be made by itself.
				l.links.Fail(w.id, w.unlinked)
			}
			l.setTrouble(w, restTrouble(o, w.unlinked, l.links.CheckLogs(w.id), w.network))
			return step.Wake
		}
		l.log.Debug("step", "sandbox_id", w.id, "verb", step.Do.String(), "why", step.Why)
		begun := l.now()
		err := l.apply(ctx, w, sb, step, &o)
		if step.Do.Changes() {
			w.since = l.now() // a cancelled step may also have made something
		}
		if fault.ReasonOf(err) == agboxv1.ErrorReason_ENGINE_UNAVAILABLE {
			l.missedEngine(begun)
		}
		if err != nil {
			return l.failed(ctx, w, sb, step, err)
		}
	}
	return l.now().Add(retryMin)
}

func (l *Loop) rules(sb ledger.Sandbox) machine.Rules {
	return machine.Rules{
		IdleTTL:     sb.Spec.GetIdleTtl().AsDuration(),
		IdleRemove:  sb.Spec.GetIdleAction() == agboxv1.IdleAction_IDLE_ACTION_REMOVE,
		CleanupTTL:  l.cleanupTTL(sb),
		Revival:     cmp.Or(sb.Spec.GetRevival(), l.revival),
		ReadyWithin: l.readyWithin,
		Retry:       retryMax,
		Services:    machine.ServiceRules(sb.Spec),
		Withheld:    l.withheld(sb.ID),
		Copies:      len(hostfiles.Copies(sb.Spec)) > 0,
		PostCreate:  uint32(len(sb.Spec.GetPostCreate())),

		PendingRecovery: l.pendingRecovery,
	}
}

// cleanupTTL is the time after which a stopped sandbox is deleted. One with an agent that has
// not ended is kept: it may be resumed.
func (l *Loop) cleanupTTL(sb ledger.Sandbox) time.Duration {
	ttl := sb.Spec.GetCleanupTtl().AsDuration()
	if ttl <= 0 || sb.State != machine.Stopped || l.now().Before(sb.StateChangedAt.Add(ttl)) {
		return ttl
	}
	if l.hasLivingAgent(sb.ID) {
		return 0
	}
	return ttl
}

func (l *Loop) hasLivingAgent(sandboxID string) bool {
	return slices.ContainsFunc(l.ledger.AgentsIn(sandboxID), func(a ledger.Agent) bool { return !a.Over() })
}

// apply executes one step and writes its results to o.
func (l *Loop) apply(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, step machine.Step, o *machine.Observation) error {
	switch step.Do {
	case machine.Look:
		return l.look(ctx, w, sb, o)
	case machine.Prepare:
		return w.turn.Interruptible(ctx, func(pull context.Context) error { return l.prepare(ctx, pull, w, sb, step.Services, o) })
	case machine.Start:
		return l.start(ctx, w, sb, o)
	case machine.Connect:
		return w.turn.Interruptible(ctx, func(ctx context.Context) error { return l.connect(ctx, w, sb, o) })
	case machine.Stop:
		return l.stop(ctx, w, sb, o)
	case machine.Remove:
		return l.remove(ctx, sb, o)
	case machine.RemoveSpares:
		return l.removeSpares(ctx, sb, o)
	case machine.EndExecs:
		return l.execs.EndAll(ctx, sb.ID, o.Primary == nil)
	case machine.FindExecs:
		return l.execs.FindExecs(ctx, sb.ID)
	case machine.RemoveLogs:
		l.cleaned(sb.ID, l.room.RemoveLogs(ctx, sb.ID)) // what is left goes with its retention
		o.LogsRemoved = ctx.Err() == nil
		return ctx.Err()
	case machine.MakeServices:
		l.makeServices(w, sb, step.Services)
	case machine.StartServices:
		return l.startServices(ctx, w, sb, step.Services, o)
	case machine.StopServices:
		return l.stopServices(ctx, w, step.Services, o)
	case machine.CopyIn:
		return w.turn.Interruptible(ctx, func(ctx context.Context) error { return l.copyIn(ctx, sb, o) })
	case machine.RunHook:
		return l.runHook(ctx, sb, *step.Hook)
	case machine.Fence:
		return l.raiseFence(o)
	case machine.RecordMain:
		return l.recordMain(ctx, sb, nil)
	case machine.Emit:
		err := l.emit(ctx, sb, l.withMountProblem(sb.ID, l.withLastWords(ctx, sb, step.Event, *o), *o))
		if err == nil {
			l.clearFailure(w, step.Event)
			err = l.afterCopy(ctx, sb, step.Event)
		}
		return err
	}
	return nil
}

// failed handles the error of a step: it schedules a retry, or fails a sandbox that is
// being made.
func (l *Loop) failed(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, step machine.Step, err error) time.Time {
	if ctx.Err() != nil {
		return time.Time{}
	}
	w.failures++
	l.log.Warn("a step failed", "sandbox_id", w.id, "verb", step.Do.String(), "failures", w.failures, "error", err, "cause", fault.Cause(err))
	making := sb.State == machine.Pending && (step.Do == machine.Prepare || step.Do == machine.Start || step.Do == machine.Fence || step.Do == machine.Connect || step.Do == machine.CopyIn)
	// One that revives itself waits for room: nobody asked for the start who could be told.
	waits := retryable(err) || sb.Revivals > 0 && fault.ReasonOf(err) == agboxv1.ErrorReason_FILE_SYSTEM_FULL
	if making && !waits {
		ev := machine.Failure(fault.ReasonOf(err), err.Error())
		if _, err := l.ledger.Emit(ctx, sb.Record, ev); err == nil {
			return l.now() // the rules clean up
		}
	}
	l.setTrouble(w, err.Error())
	return l.now().Add(min(retryMin<<min(w.failures-1, 10), retryMax))
}

// retryable reports whether the same step may succeed later by itself, because the engine
// was away or slow.
func retryable(err error) bool {
	if reason := fault.ReasonOf(err); reason == agboxv1.ErrorReason_IMAGE_PULL_FAILED {
		return false
	}
	return errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)
}

func (l *Loop) setTrouble(w *sandboxWork, trouble string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.trouble = trouble
}
