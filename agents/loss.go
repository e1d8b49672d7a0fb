package agents

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
	return emit(&agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: agboxv1.PauseReason_PAUSE_REASON_ORPHANED, Message: message}},
	}, why)
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

// orphans reports whether an end is the loss of a container, an engine or a host.
func orphans(end *agboxv1.IncarnationEnd) bool {
	return end.GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST && !end.GetOomKilled()
}
