package reconcile

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
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
		o.HandedOver = l.opts.HandedOver
		o.StartedAt = w.startedAt
		o.Configured = w.configuredFor == sb.PendingSequence
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
		if errors.Is(err, errInterrupted) {
			return time.Time{}
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
		Revival:     cmp.Or(sb.Spec.GetRevival(), l.opts.Revival),
		ReadyWithin: l.opts.ReadyWithin,
		Retry:       retryMax,
		Services:    machine.ServiceRules(sb.Spec),
		Withheld:    l.withheld(sb.ID),
		Copies:      commandWaits(sb),
		Prepare:     uint32(len(sb.Spec.GetPrepare())),
		PostCreate:  uint32(len(sb.Spec.GetPostCreate())),

		PendingRecovery: l.opts.PendingRecovery,
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

// endExecs ends the execs of a primary that was seen not to run. An exec that began after that look may run in the
// next life of the container, which the engine or a person has started meanwhile: then it looks again.
func (l *Loop) endExecs(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, o *machine.Observation) error {
	for id := range sb.Execs {
		if _, before := w.ran[id]; !before {
			o.Looked = false
			return nil
		}
	}
	return l.execs.EndAll(ctx, sb.ID, sb.Execs, o.Primary == nil)
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
	case machine.Configure:
		return l.configure(ctx, w, sb, o)
	case machine.Stop:
		return l.stop(ctx, w, sb, o)
	case machine.Kill:
		return l.kill(ctx, sb, step.Services, o)
	case machine.Remove:
		return l.remove(ctx, sb, o)
	case machine.RemoveSpares:
		return l.removeSpares(ctx, sb, o)
	case machine.EndExecs:
		return l.endExecs(ctx, w, sb, o)
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
	making := sb.State == machine.Pending && (step.Do == machine.Prepare || step.Do == machine.Start || step.Do == machine.Fence || step.Do == machine.Connect || step.Do == machine.Configure || step.Do == machine.CopyIn)
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

// emit appends an event. A sandbox that becomes READY gets the record of its own command
// in the same transaction, so whoever sees it READY finds the command.
func (l *Loop) emit(ctx context.Context, sb ledger.Sandbox, ev *agboxv1.SandboxEvent) error {
	if ev.GetEventType() == agboxv1.EventType_SANDBOX_READY {
		return l.recordMain(ctx, sb, ev)
	}
	_, err := l.ledger.Emit(ctx, sb.Record, ev)
	return err
}

// recordMain records the sandbox's own command, if it is due, together with an event,
// which may be nil.
func (l *Loop) recordMain(ctx context.Context, sb ledger.Sandbox, ev *agboxv1.SandboxEvent) error {
	main := l.execs.Main(sb.ID)
	switch {
	case main == nil && ev == nil:
		return nil
	case main == nil:
		_, err := l.ledger.Emit(ctx, sb.Record, ev)
		return err
	}
	known, taken, err := l.ledger.AcceptMain(ctx, sb.Record, ev, main)
	if err == nil && (known || taken) {
		l.execs.MainRecorded(main, known)
	}
	return err
}

// Foresee returns the step that the loop would execute for a sandbox with the inventory
// inv, without executing it. It leaves out a sandbox that its worker is changing.
func (l *Loop) Foresee(ctx context.Context, sb ledger.Sandbox, inv runtime.Inventory) (machine.Step, error) {
	inv = ours(inv, sb.Nonce)
	o := machine.Observation{Looked: true, Connected: l.links.Connected(sb.ID), ConnectFailed: true}
	if err := l.observe(ctx, sb.ID, inv, &o); err != nil {
		return machine.Step{}, err
	}
	o.Unfenced = l.unfenced(sb, inv.Networks)
	l.mu.Lock()
	w := l.sandboxes[sb.ID]
	l.mu.Unlock()
	if w != nil {
		l.recall(w, &o)
	}
	if o.Primary == nil || o.Primary.State != runtime.StateRunning && o.Primary.State != runtime.StatePaused {
		sb.Execs = nil // they end on the way; the decision does not depend on them
	}
	return machine.Next(sb.Record, o, l.rules(sb), l.now()), nil
}
