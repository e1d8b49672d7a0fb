package machine

import (
	"fmt"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// PendingResume continues to make it.
	PendingResume PendingRecovery = iota
	// PendingFail fails it with PRIMARY_MISSING.
	PendingFail
)

// Next decides what to do about a sandbox. It returns one step. After executing it, call
// Next again with the new observation, until it returns Rest.
func Next(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case !r.Exists(), r.Over():
		return Step{}
	case r.Want == WantDeleted:
		return nextDeleting(r, o, now)
	case r.Want == WantStopped && r.State != Stopped && r.State != Failed:
		return nextStopping(r, o, now)
	}
	switch r.State {
	case Pending:
		return nextPending(r, o, rules, now)
	case Ready:
		return nextReady(r, o, rules, now)
	case Failed:
		return nextFailed(r, o, rules)
	case Stopped:
		if r.Restart {
			return emit(agboxv1.EventType_SANDBOX_RESUME_REQUESTED, nil)
		}
		return nextStopped(r, rules, now)
	}
	return Step{}
}

// nextStopped deletes a sandbox that was stopped for long enough.
func nextStopped(r Record, rules Rules, now time.Time) Step {
	if rules.CleanupTTL <= 0 {
		return Step{}
	}
	if due := r.StateChangedAt.Add(rules.CleanupTTL); now.Before(due) {
		return Step{Wake: due}
	}
	return emit(agboxv1.EventType_SANDBOX_DELETE_REQUESTED, &agboxv1.SandboxPhaseDetails{Reason: cleanupReason})
}

func nextDeleting(r Record, o Observation, now time.Time) Step {
	switch {
	case !o.Looked:
		return Step{Do: Look}
	case drains(r, o, now):
		return nextDrained(o)
	case o.Leftovers && running(o.Primary) && len(r.Execs) > 0:
		return Step{Do: Stop, Why: "running execs get the chance to end before removal"}
	case running(o.Primary), len(runningServices(o)) > 0:
		return Step{Do: Kill, Services: runningServices(o)}
	case len(r.Execs) > 0:
		return Step{Do: EndExecs}
	case r.RemoveLogs && !o.LogsRemoved:
		return Step{Do: RemoveLogs}
	case o.Leftovers && !r.Ended:
		return emit(agboxv1.EventType_SANDBOX_ENDED, nil)
	case o.Leftovers:
		return Step{Do: Remove}
	}
	return ended(r, agboxv1.EventType_SANDBOX_DELETED)
}

func nextStopping(r Record, o Observation, now time.Time) Step {
	switch {
	case !o.Looked:
		return Step{Do: Look}
	case drains(r, o, now):
		return nextDrained(o)
	case running(o.Primary):
		return Step{Do: Stop}
	case len(runningServices(o)) > 0:
		return Step{Do: StopServices, Services: runningServices(o)}
	case len(r.Execs) > 0:
		return Step{Do: EndExecs}
	}
	return ended(r, agboxv1.EventType_SANDBOX_STOPPED)
}

// ended is the end of a stop or a removal. It repeats the reason of the request, as
// published.
func ended(r Record, typ agboxv1.EventType) Step {
	if r.Reason == "" {
		return emit(typ, nil)
	}
	return emit(typ, &agboxv1.SandboxPhaseDetails{Reason: r.Reason})
}

func nextPending(r Record, o Observation, rules Rules, now time.Time) Step {
	fresh := !o.Inherited && !r.Taken && !r.WasReady && !r.Furnished && o.StartedAt.IsZero() && o.Primary == nil
	switch {
	case !o.Looked && !fresh:
		return Step{Do: Look}
	case o.Stray:
		return Step{Do: Stop, Why: "the engine does not have the container of its processes"}
	case len(r.Execs) > 0 && !running(o.Primary):
		return Step{Do: EndExecs}
	case o.Primary == nil && r.WasReady:
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING, removedSentence)
	case o.Primary == nil && (r.Furnished || r.Prepare.Done > 0):
		if end, failed := commandFailed(r); failed {
			return end
		}
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING,
			"The primary container is gone, and with it what was put and run in it before it was ready; remove the sandbox and create it again.")
	case o.Primary == nil && o.Inherited && !o.HandedOver && rules.PendingRecovery == PendingFail:
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING,
			"The daemon was restarted while the sandbox was being made; remove it and create it again.")
	case o.Primary == nil:
		return Step{Do: Prepare, Services: required(rules)}
	case len(o.Unfenced) > 0:
		return Step{Do: Fence}
	}
	if end, ended := hopeless(r, rules); ended {
		if running(o.Primary) && (r.WasReady || len(r.Execs) > 0) {
			return Step{Do: Stop, Why: "the sandbox fails, and its commands end first"}
		}
		return end
	}
	if !running(o.Primary) && !o.StartedAt.IsZero() {
		if o.LostDue && late(o, rules, now) { // nextLost has stopped it
			return unreachable(rules)
		}
		return fail(exitReason(o), exitSentence(o))
	}
	if running(o.Primary) && o.LostDue { // before anything may begin in their place
		return nextLost(o, rules, now)
	}
	services, ready := nextServices(r, o, rules, now)
	untold := r.Taken && !r.WasReady && !r.Furnished && !o.Configured
	unprepared := r.Prepare.Done < rules.Prepare && !r.WasReady
	uncopied := rules.Copies && !r.Copied && !r.WasReady
	switch {
	case services.Do != Rest && (services.Do != RunHook || !unprepared && !untold && !uncopied):
		return services
	case !running(o.Primary):
		return Step{Do: Start}
	case !o.Connected:
		return nextUnlinked(r, o, rules, now)
	case unprepared && (runningHook(r, Hook{Prepare: true}) || services.Do == Rest && !ready):
		return Step{Wake: services.Wake}
	case unprepared: // also before the hooks of services
		return Step{Do: RunHook, Hook: &Hook{Prepare: true, Index: r.Prepare.Done, Start: r.Prepare.Stops}}
	case untold:
		return nextOwned(o, rules, now)
	case uncopied && !o.Copied:
		return Step{Do: CopyIn}
	case uncopied:
		return emit(agboxv1.EventType_SANDBOX_FILES_COPIED, o.Ignored)
	case !ready:
		return services
	case !r.WasReady && r.PostCreate.Done < rules.PostCreate && runningHook(r, Hook{}):
		return Step{}
	case !r.WasReady && r.PostCreate.Done < rules.PostCreate:
		return Step{Do: RunHook, Hook: &Hook{Index: r.PostCreate.Done, Start: r.PostCreate.Stops}}
	}
	return emit(agboxv1.EventType_SANDBOX_READY, nil)
}

// nextLost looks for the execs that were lost in a primary that runs. If that does not succeed in
// time, the primary is stopped, and they end with it.
func nextLost(o Observation, rules Rules, now time.Time) Step {
	switch {
	case late(o, rules, now):
		return Step{Do: Stop, Why: "the sandbox fails, and execs that were lost may run in it"}
	case !o.Connected:
		return Step{Do: Connect}
	}
	return Step{Do: FindExecs, Why: "the container of execs that were lost is back"}
}

// nextUnlinked waits for the supervisor of a started primary.
func nextUnlinked(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case !late(o, rules, now):
		return Step{Do: Connect}
	case len(r.Execs) > 0:
		return Step{Do: Stop, Why: "the sandbox fails, and its commands end first"}
	}
	return unreachable(rules)
}

// nextOwned tells the supervisor of a sandbox that was made ahead whose it is, as long as it has time.
func nextOwned(o Observation, rules Rules, now time.Time) Step {
	if late(o, rules, now) {
		return unreachable(rules)
	}
	return Step{Do: Configure}
}

// late reports whether the supervisor of a started primary has had its time.
func late(o Observation, rules Rules, now time.Time) bool {
	return now.After(o.StartedAt.Add(rules.ReadyWithin))
}

func unreachable(rules Rules) Step {
	return fail(agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, fmt.Sprintf(
		"The supervisor did not answer within %s; see the daemon's log, remove the sandbox and create it again.", rules.ReadyWithin))
}

// nextReady connects to the supervisor before it observes the engine. So a restarted
// daemon serves execs again even while the engine is slow or away.
func nextReady(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case !o.Connected && !o.ConnectFailed:
		return Step{Do: Connect}
	case o.Connected && o.MainDue:
		return Step{Do: RecordMain}
	case !o.Looked:
		return Step{Do: Look}
	case !running(o.Primary) && len(r.Execs) > 0:
		return Step{Do: EndExecs}
	case !running(o.Primary):
		return nextDown(r, o, rules, now)
	case o.Connected && o.LostDue: // the container was back before the sandbox had failed
		return Step{Do: FindExecs, Why: "the container of execs that were lost is back"}
	case o.Stray: // its commands go on, but nothing can be made for them in the engine
		return nextCalm(r, o, rules, now)
	case len(o.Unfenced) > 0:
		return Step{Do: Fence, Why: "its rules against access to the host are missing"}
	case o.Spares:
		return Step{Do: RemoveSpares, Why: "the engine has made something for a daemon that was killed, and nothing needs it"}
	}
	services, _ := nextServices(r, o, rules, now)
	if services.Do != Rest {
		return services
	}
	calm := nextCalm(r, o, rules, now)
	if calm.Do == Rest {
		calm.Wake = sooner(calm.Wake, services.Wake)
	}
	return calm
}

// inUseLook is the minimum pause between two looks at a sandbox in use. Without it, a
// very short idle_ttl would keep the daemon and the engine busy.
const inUseLook = time.Second

// nextCalm decides about a READY sandbox that needs no repair.
func nextCalm(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case paused(o.Primary):
		return Step{} // shown as it is; nothing answers in the container
	case !o.Connected:
		return Step{Wake: now.Add(rules.Retry)}
	case rules.IdleTTL > 0 && r.InUse():
		// Even if the execs end at once, idle_ttl does not expire before this.
		return Step{Wake: now.Add(max(rules.IdleTTL, inUseLook))}
	case rules.IdleTTL > 0:
		if due := r.LastUse.Add(rules.IdleTTL); now.Before(due) {
			return Step{Wake: due}
		}
		request := agboxv1.EventType_SANDBOX_STOP_REQUESTED
		if rules.IdleRemove {
			request = agboxv1.EventType_SANDBOX_DELETE_REQUESTED
		}
		return emit(request, &agboxv1.SandboxPhaseDetails{Reason: idleReason})
	}
	return Step{}
}

// nextDown applies the revival policy to a READY sandbox whose primary is not running. A
// primary that was removed cannot be revived, because its content is lost.
func nextDown(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case rules.Revival == agboxv1.RevivalPolicy_REVIVAL_POLICY_REAP:
		return emit(agboxv1.EventType_SANDBOX_DELETE_REQUESTED, &agboxv1.SandboxPhaseDetails{
			Reason: "the primary container ended, and the revival policy is reap",
		})
	case o.Primary == nil:
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING, removedSentence)
	case rules.Revival != agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE:
		return fail(exitReason(o), exitSentence(o))
	case r.Revivals >= maxRevivals && now.Sub(r.ReadyAt) < reviveStable:
		return fail(agboxv1.ErrorReason_PRIMARY_EXITED, fmt.Sprintf(
			"The primary container was revived %d times in a row and ended each time; see its logs, then start the sandbox again or remove it.", r.Revivals))
	}
	return emit(agboxv1.EventType_SANDBOX_REVIVED, &agboxv1.SandboxPhaseDetails{Reason: exitSentence(o)})
}

// backSentence is the reason why a sandbox goes on that nobody has started again.
const backSentence = "The primary container was missing, and is back."

const removedSentence = "The primary container was removed outside agbox; remove the sandbox and create it again."

// nextFailed removes the objects of a sandbox that failed before it was ever READY. One
// that was READY is kept, so that the user can examine and resume it.
//
// If its primary was missing and is back, the sandbox goes on: it is PENDING as after a
// request to start it, and finds its execs before it is READY. A sandbox never gets another
// primary. Where its agents got another sandbox instead, this one is to be deleted, and the
// primary with it. Processes that the engine still does not have are ended: nothing can be made
// for them, and an agent may have moved.
func nextFailed(r Record, o Observation, rules Rules) Step {
	switch {
	case !o.Looked && (len(r.Execs) > 0 || !r.WasReady || len(rules.Services) > 0 || r.Missing()):
		return Step{Do: Look}
	case r.Missing() && running(o.Primary) && (o.Stray || !r.WasReady):
		return Step{Do: Stop, Why: "its primary was missing, and its commands were recorded as lost"}
	case r.Missing() && paused(o.Primary):
		return Step{} // nothing answers in the container
	case r.Missing() && running(o.Primary):
		return emit(agboxv1.EventType_SANDBOX_RESUME_REQUESTED, &agboxv1.SandboxPhaseDetails{Reason: backSentence})
	case len(r.Execs) > 0 && !running(o.Primary):
		return Step{Do: EndExecs}
	case r.WasReady && len(runningServices(o)) > 0:
		return Step{Do: StopServices, Services: runningServices(o), Why: "services end with their sandbox"}
	case r.WasReady:
		return Step{}
	case o.Leftovers:
		return Step{Do: Remove, Why: "nothing half-made is left behind"}
	}
	return Step{}
}

func exitReason(o Observation) agboxv1.ErrorReason {
	if o.EngineRestarted {
		return agboxv1.ErrorReason_ENGINE_RESTARTED
	}
	return agboxv1.ErrorReason_PRIMARY_EXITED
}

func exitSentence(o Observation) string {
	c := o.Primary
	switch {
	case c.Error != "":
		return "The primary container could not be started: " + c.Error
	case c.OOMKilled:
		return "The primary container ran out of memory; give it more or run less in it, then start the sandbox again."
	case o.EngineRestarted:
		return "The primary container ended while the container engine was away, as it does when an engine without live-restore is restarted; start the sandbox again, and turn on live-restore in the engine's configuration."
	case c.ExitCode == 0:
		// The supervisor ends like this on a stop signal, and the daemon sent none.
		return "The primary container was stopped outside agbox, by the engine's own tools or a restart of the engine; start the sandbox again, or remove it."
	}
	return fmt.Sprintf("The primary container exited with code %d; start the sandbox again, or remove it.", c.ExitCode)
}

// drains reports whether a stop or removal waits for incarnations of agents to end. They end
// by themselves: their supervisor keeps to the times of the drain. Those in a container that
// is paused, or whose supervisor does not answer, are not waited for.
func drains(r Record, o Observation, now time.Time) bool {
	return running(o.Primary) && !paused(o.Primary) && !o.ConnectFailed &&
		!r.Now && r.StopReason == "" && now.Before(o.DrainUntil)
}

// nextDrained waits for incarnations. Without a link nobody asks them to end, or hears that
// they have.
func nextDrained(o Observation) Step {
	if !o.Connected {
		return Step{Do: Connect, Why: "agents in it save their work before its end"}
	}
	return Step{Wake: o.DrainUntil}
}
