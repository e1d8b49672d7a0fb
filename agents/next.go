package agents

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxEnsured is how often a sandbox is asked for that fails each time. ensurePause is the
// pause before the second attempt; it doubles.
const (
	maxEnsured  = 4
	ensurePause = 5 * time.Second
)

// busyPause is the time between two looks whether the other agents of a lost sandbox can move, or
// whether execs that were lost are found.
const busyPause = time.Second

// doneGrace is how long a program may go on after it has reported its outcome.
const doneGrace = 10 * time.Second

// withholdGrace is how long a start waits until the services are stopped that the attempt
// must be without. The engine may be slow or away.
const withholdGrace = 30 * time.Second

// Next decides what to do about an agent. It returns one step. After executing it, call
// Next again with the new observation, until it returns Rest.
func Next(r Record, seen Seen, rules Rules, now time.Time) Step {
	step := next(r, seen, rules, now)
	for _, due := range []time.Time{leasesExpire(r, rules), seen.LostAt} {
		if step.Do == Rest && !due.IsZero() && (step.Wake.IsZero() || due.Before(step.Wake)) {
			step.Wake = due
		}
	}
	return step
}

func next(r Record, seen Seen, rules Rules, now time.Time) Step {
	due := leasesExpire(r, rules)
	switch {
	case !r.Exists() || r.ID == Init || r.Deleted:
		return Step{}
	case seen.Found && r.Incarnation == nil: // also of one that is over
		return Step{Do: EndFound, Why: "its incarnation was lost, and its process is back"}
	case r.Over():
		return nextOver(r, seen, rules, now)
	}
	if ev, why := nextOfKin(r, seen.Kin); ev != nil {
		return emit(ev, why)
	}
	switch {
	case seen.Lost != "":
		return Step{Do: EndHold, Holder: seen.Lost, Why: "its holder is gone"}
	case r.Incarnation != nil:
		return nextRunning(r, seen, rules, now)
	case r.Undecided:
		return emit(Ending(r, rules), "its incarnation has ended")
	case r.Kill != nil:
		return emit(ended(Aborted, &agboxv1.AgentDone{
			Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT, Message: "It was killed" + by(r.Kill.GetBy()) + ".",
		}), "it was killed")
	case r.Incarnations == 0 && seen.Kin.Failed != "":
		return emit(failed(agboxv1.ErrorReason_DEPENDENCY_FAILED, "It was to follow "+seen.Kin.Failed+".", 0), "an agent that it was to follow has failed")
	case seen.Sandbox == SandboxMissing: // for ever, because the ids of sandboxes are never reused
		return emit(failed(agboxv1.ErrorReason_SANDBOX_NOT_FOUND, "Its sandbox was deleted.", 0), "its sandbox was deleted")
	case !due.IsZero() && !now.Before(due):
		return emit(expired(r), "it had no incarnation for too long")
	case r.PauseWanted != nil:
		return emit(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: r.PauseWanted},
		}, "a pause was requested")
	case r.State == Pending, r.Incarnations == 0 && r.State == Paused && r.Pause.Woken:
		if seen.BreakerOpen {
			return emit(failed(agboxv1.ErrorReason_CLASS_BREAKER_OPEN,
				fmt.Sprintf("FAILED: Agent circuit breaker open. Several agents of class %q have crashed; try again later.", r.Class), 0), "the breaker of its class is open")
		}
		return nextBegin(r, seen, rules, now, true)
	case r.State != Paused: // its exec was accepted, and its program was never started
		return emit(PausedFor(agboxv1.PauseReason_PAUSE_REASON_DRAINED, cmp.Or(r.UnstartedWhy, "Its program was not started.")), "its program was not started")
	}
	return nextPaused(r, seen, rules, now)
}

// nextLook is the earliest time at which the same observation would lead to another step.
// Silence needs no time: the supervisor tells when it has lasted long enough.
func nextLook(r Record, seen Seen, rules Rules, now time.Time) time.Time {
	var soonest time.Time
	in := func(d time.Duration) {
		if d <= 0 {
			return
		}
		if at := now.Add(d); soonest.IsZero() || at.Before(soonest) {
			soonest = at
		}
	}
	if r.Done != nil {
		in(r.DoneAt.Add(doneGrace).Sub(now))
	}
	in(idleSince(r, rules, now))
	if due := signalDue(r, seen); !due.IsZero() {
		in(due.Sub(now))
	}
	if alone, due := left(r, seen, now); alone && !due.IsZero() {
		in(due.Sub(now))
	}
	return soonest
}

func signalDue(r Record, seen Seen) time.Time {
	if seen.Signal.IsZero() {
		return time.Time{}
	}
	return r.SignalDue(seen.Signal)
}

// left reports whether a program is left alone although its agent is to end, because it was
// asked to end by itself. due is when that changes; zero means never.
func left(r Record, seen Seen, now time.Time) (alone bool, due time.Time) {
	switch until := r.KillAt.Add(KillAcknowledged); {
	case !r.EndsItself():
		return false, time.Time{}
	case seen.Acknowledged:
		return true, time.Time{}
	default:
		return now.Before(until), until
	}
}

// nextBegin begins an incarnation, or makes the sandbox that it needs. A sandbox that a
// user has stopped is resumed only for an agent that somebody has asked for since.
func nextBegin(r Record, seen Seen, rules Rules, now time.Time, asked bool) Step {
	if r.Incarnations == 0 && len(seen.Kin.Awaited) > 0 {
		return Step{} // the end of one of them calls again
	}
	if r.Unheld() {
		return emit(suspended(), "nobody holds it")
	}
	switch seen.Sandbox {
	case SandboxReady:
		if due := r.roomDue(); now.Before(due) {
			return Step{Wake: due}
		}
		if seen.Unsought {
			return Step{Wake: now.Add(busyPause)}
		}
		return emit(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: r.Incarnations + 1,
			Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{
				ExecId: ExecID(r.ID, r.Incarnations+1), SandboxId: r.SandboxID,
				Checkpoint: r.Checkpoint().GetSeq(), Attempt: r.Crashes + 1, Strategy: r.Strategy,
			}},
		}, "its sandbox is ready")
	case SandboxFailed:
		if step, decided := nextFailed(r, seen, rules, now); decided {
			return step
		}
	case SandboxStopped:
		if !asked {
			return Step{}
		}
	case SandboxMaking, SandboxStopping:
		return Step{}
	}
	return Step{Do: EnsureSandbox}
}

// nextRunning is about an agent with an incarnation.
func nextRunning(r Record, seen Seen, rules Rules, now time.Time) Step {
	switch seen.Exec {
	case ExecUnknown:
		if r.Kill == nil && seen.Sandbox == SandboxReady {
			if due := r.Incarnation.BegunAt.Add(withholdGrace); seen.Services && now.Before(due) {
				return Step{Wake: due}
			}
			return Step{Do: Start}
		}
		return emit(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: r.Incarnation.N,
			Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
				Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED, ExecId: r.Incarnation.ExecID,
			}},
		}, "it was not started")
	case ExecEnded:
		seen.Unknown = true // what its program has not taken by now, it did not take
		if event := entered(r, seen, rules); event != nil && seen.Ran && r.Kill == nil {
			return emit(event, "its program ran") // before its reports, however short it was
		}
		return Step{Do: Collect}
	}
	alone, due := left(r, seen, now)
	if r.Kill != nil && !alone {
		if seen.Ending && r.Kill.GetMode() != agboxv1.KillMode_KILL_MODE_NOW {
			return Step{}
		}
		return Step{Do: Kill, End: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED, Why: "it was killed"}
	}
	if event := entered(r, seen, rules); event != nil { // before its reports
		return emit(event, "its program runs")
	}
	if seen.Unread {
		return Step{Do: Consume}
	}
	if seen.Untold { // before it learns that a child has ended
		return Step{Do: TellChildren, Why: "the program does not know what its children have of the budget"}
	}
	if seen.Asked { // after what it reported before
		return Step{Do: Answer}
	}
	if seen.Ending || seen.Draining || seen.Unknown {
		return Step{Wake: due} // its end, or a new link, calls again
	}
	if r.PauseMark() != seen.PauseMark {
		return Step{Do: TellPause, Why: "the program does not know whether it is paused"}
	}
	if event := suspends(r); event != nil {
		return emit(event, "nobody holds it")
	}
	if step, due := drainDue(r, seen, rules, now); due {
		return step
	}
	level := Liveness(seen.Silent, seen.Armed, rules.Heartbeat)
	if declared := declaredLevel(level); declared != r.Liveness && declared != agboxv1.AgentLiveness_AGENT_LIVENESS_UNSPECIFIED {
		return emit(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_LIVENESS, Incarnation: r.Incarnation.N,
			Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Liveness: declared, Silent: durationpb.New(seen.Silent)}},
		}, "its liveness changed")
	}
	switch {
	case level == agboxv1.AgentLiveness_AGENT_LIVENESS_ZOMBIE, level == agboxv1.AgentLiveness_AGENT_LIVENESS_CRASHED && seen.Hung:
		return Step{Do: EndIncarnation, End: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE, Why: fmt.Sprintf("it has been silent for %v", seen.Silent)}
	case r.Context == agboxv1.AgentContext_AGENT_CONTEXT_DEAD && r.Done == nil:
		return Step{Do: EndIncarnation, End: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT, Why: "its context is used up"}
	}
	if due := signalDue(r, seen); !due.IsZero() && !now.Before(due) {
		return Step{Do: Signal, Why: "it has not acknowledged a message"}
	}
	return Step{Wake: nextLook(r, seen, rules, now)}
}

func nextOver(r Record, seen Seen, rules Rules, now time.Time) Step {
	if !r.Owned || seen.Sandbox == SandboxMissing || seen.Shared {
		return Step{}
	}
	unused := refused(r) || r.Incarnations == 0 && seen.Sandbox == SandboxMaking && !seen.WasReady // nothing has worked in it
	due := r.EndedAt.Add(rules.CleanupAfter)
	switch {
	case !refused(r) && now.Before(due):
		return Step{Wake: due}
	case unused, seen.Work == WorkHome:
		return Step{Do: RemoveSandbox, Why: "its agent has ended"}
	case seen.Work == WorkLeft:
		return Step{Wake: seen.WorkAgain}
	case seen.Work == WorkCompared, seen.Sandbox == SandboxMaking, seen.Sandbox == SandboxStopping:
		return Step{} // the end of that calls again
	}
	return Step{Do: CompareWork, Why: "its agent has ended"}
}

// refused reports whether an agent ended before it began, so that nothing ran in its sandbox.
func refused(r Record) bool {
	switch r.Done.GetErrorCode() {
	case agboxv1.ErrorReason_CLASS_BREAKER_OPEN.String(), agboxv1.ErrorReason_DEPENDENCY_FAILED.String():
		return true
	}
	return false
}

// drainDue returns the drain that an incarnation needs, if any.
func drainDue(r Record, seen Seen, rules Rules, now time.Time) (Step, bool) {
	drained := agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED
	switch {
	case r.Done != nil && now.Sub(r.DoneAt) >= doneGrace:
		return Step{Do: Drain, End: drained, Why: "it has reported its outcome and goes on"}, true
	case r.OverBudget(rules.Budget):
		return Step{Do: Drain, End: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET, Why: "its budget is used up"}, true
	case r.PauseWanted != nil:
		return Step{Do: Drain, End: drained, Pause: r.PauseWanted.GetReason(), Why: "a pause was requested"}, true
	case seen.Sandbox == SandboxStopping:
		return Step{Do: Drain, End: drained, Pause: agboxv1.PauseReason_PAUSE_REASON_DRAINED, Why: "its sandbox is to stop"}, true
	case idleSince(r, rules, now) == 0:
		return Step{Do: Drain, End: drained, Pause: agboxv1.PauseReason_PAUSE_REASON_IDLE, Why: "it has been paused for too long"}, true
	}
	return Step{}, false
}

// idleSince is the time until a paused incarnation is drained; negative if it is not.
func idleSince(r Record, rules Rules, now time.Time) time.Duration {
	if r.State != Paused || r.Pause.Woken || rules.IdleTimeout <= 0 {
		return -1
	}
	since := r.Pause.Since
	if r.Incarnation.BegunAt.After(since) {
		since = r.Incarnation.BegunAt
	}
	return max(0, since.Add(rules.IdleTimeout).Sub(now))
}

// declaredLevel is the level that is recorded. WARNING and UNHEALTHY are only shown.
func declaredLevel(level agboxv1.AgentLiveness) agboxv1.AgentLiveness {
	switch level {
	case agboxv1.AgentLiveness_AGENT_LIVENESS_WARNING, agboxv1.AgentLiveness_AGENT_LIVENESS_UNHEALTHY:
		return agboxv1.AgentLiveness_AGENT_LIVENESS_ACTIVE
	}
	return level
}

// Enters reports whether an agent with an incarnation begins to work, or goes on, without a
// report of its program.
func Enters(r Record, seen Seen, rules Rules) bool { return entered(r, seen, rules) != nil }

// entered returns the event with which an agent begins to work whose program need not
// say so, or nil.
func entered(r Record, seen Seen, rules Rules) *agboxv1.AgentEvent {
	if !rules.ReadyStart && !(rules.Probes.AwaitReady && seen.Ready) {
		return nil
	}
	ev := &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, Incarnation: r.Incarnation.N}
	switch {
	case r.State == Pending:
		ev.State = Planning
	case r.State == Planning && !r.Incarnation.Phased:
		ev.State = Executing
	case r.State == Paused && r.Pause.Woken && (r.Pause.Observation == r.Incarnation.Begun || !seen.Spoke && !seen.Unknown):
		ev.Observation = r.Pause.Observation // it got that as a file, or uses nothing of agbox
		ev.Type, ev.State = agboxv1.AgentEventType_AGENT_RESUMED, r.GoesOn()
	default:
		return nil
	}
	return ev
}

// nextPaused is about a paused agent without an incarnation.
func nextPaused(r Record, seen Seen, rules Rules, now time.Time) Step {
	p := r.Pause
	drained := p.Reason == agboxv1.PauseReason_PAUSE_REASON_SUCCESSION || p.Reason == agboxv1.PauseReason_PAUSE_REASON_DRAINED
	switch {
	case !p.Woken && r.AwaitsApproval():
		return Step{}
	case (p.Woken || drained) && r.Loss != "" && rules.Revival != Revive:
		return orphaned(r.Loss, "it was lost before, and its revival policy decides", rules)
	case p.Woken, drained:
		return nextBegin(r, seen, rules, now, p.Woken)
	}
	switch p.Reason {
	case agboxv1.PauseReason_PAUSE_REASON_CRASH:
		if now.Before(p.WakeAt) {
			return Step{Wake: p.WakeAt}
		}
		return nextBegin(r, seen, rules, now, false)
	case agboxv1.PauseReason_PAUSE_REASON_ORPHANED:
		switch rules.Revival {
		case Reap:
			return orphaned(p.Message, "", rules)
		case Ask:
			return Step{}
		}
		return nextBegin(r, seen, rules, now, false)
	}
	return Step{}
}

// roomPause is the pause after a start that could not be written down; it doubles up to
// maxRoomPause. The disk of the logs is full, and each attempt is recorded.
const roomPause, maxRoomPause = 5 * time.Second, time.Minute

// roomDue is when to look again whether there is room for an incarnation; zero is now.
func (r Record) roomDue() time.Time {
	if r.Unstarted == 0 {
		return time.Time{}
	}
	return r.UnstartedAt.Add(min(roomPause<<min(r.Unstarted-1, 8), maxRoomPause))
}

// Orphaned reports whether its incarnation was lost and no other one has begun since.
func (r Record) Orphaned() bool {
	return r.State == Paused && r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_ORPHANED && r.Incarnation == nil && !r.Undecided
}

// Unasked reports whether it is ORPHANED and nobody has decided since that it goes on.
func (r Record) Unasked() bool { return r.Orphaned() && !r.Pause.Woken }

// orphaned ends an agent that was lost if its revival policy is reap, and makes it ORPHANED else.
func orphaned(message, why string, rules Rules) Step {
	if rules.Revival == Reap {
		return emit(Reaped("Its incarnation was lost, and its revival policy is reap: "+message), "its revival policy is reap")
	}
	return emit(PausedFor(agboxv1.PauseReason_PAUSE_REASON_ORPHANED, message), why)
}

// strandedAfter is for how long a sandbox fails before an agent that was lost is said to be
// stranded. maxUnaskedPause is the longest pause between two attempts that nobody has asked for.
const strandedAfter, maxUnaskedPause = time.Minute, time.Hour

// nextFailed is about an agent that is to begin an incarnation in a sandbox that is FAILED. It
// decides nothing if the sandbox is to be asked for now. If that was in vain, an agent that has
// begun before is ORPHANED, so its revival policy says what follows, as after a loss of its program.
func nextFailed(r Record, seen Seen, rules Rules, now time.Time) (step Step, decided bool) {
	why := "Its sandbox failed: " + seen.SandboxError
	orphan := r.State == Paused && r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_ORPHANED
	unasked, hopeless := r.Unasked(), seen.Gone && !r.Owned
	tried := seen.Ensured >= maxEnsured || seen.Gone && seen.Ensured > 0
	if unasked {
		tried = !r.Pause.Stranded && (hopeless || seen.FailedAt.Sub(seen.FailedSince) >= strandedAfter)
	}
	moves := seen.Gone && r.Owned && r.Settled
	switch {
	case moves && rules.Revival != Revive && !orphan:
		return orphaned(why, "the container of its sandbox is gone, and its revival policy decides", rules), true
	case moves && seen.Busy:
		return Step{Wake: now.Add(busyPause)}, true
	case moves:
		return Step{Do: Move, Why: "the container of its sandbox is gone"}, true
	case seen.Gone && seen.Kept:
		return Step{}, true // the owner of the sandbox takes it along
	case seen.Hopeless, r.Incarnations == 0 && (r.Owned || seen.Ensured >= maxEnsured && !seen.Full):
		// A sandbox of others may have failed a moment ago, and can be resumed.
		return emit(failed(agboxv1.ErrorReason_SANDBOX_NOT_READY, why, 0), "its sandbox failed"), true
	case r.Incarnations > 0 && tried && !seen.Full:
		return orphaned(why, "the sandbox in which it is to go on cannot be started", rules), true
	case unasked && hopeless:
		return Step{}, true // the round of the sandbox sees when the container is back
	}
	due := ensureDue(seen, unasked)
	return Step{Wake: due}, now.Before(due) && !now.Before(seen.FailedAt) // else the clock was ahead
}

// ensureDue is when a sandbox that is FAILED is to be asked for. The pause begins with its newest
// failure, so that its agents share the attempts. If nobody has asked, it is as long as the sandbox
// had failed by then: it doubles, and goes on so after a restart of the daemon.
func ensureDue(seen Seen, unasked bool) time.Time {
	pause, longest := ensurePause<<min(max(0, seen.Ensured-1), 8), maxRoomPause
	first := seen.Ensured == 0
	if unasked {
		pause = seen.FailedAt.Sub(seen.FailedSince)
		first = pause <= 0 && seen.EnsuredAt.Before(seen.FailedSince)
	}
	if unasked && !seen.Full {
		longest = maxUnaskedPause
	}
	if first {
		return time.Time{}
	}
	return latest(seen.FailedAt, seen.EnsuredAt).Add(min(max(pause, ensurePause), longest))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
