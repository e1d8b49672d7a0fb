package agent

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Orphaned reports whether its incarnation was lost and no other one has begun since.
func (r Record) Orphaned() bool {
	return r.State == Paused && r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_ORPHANED && r.Incarnation == nil && !r.Undecided
}

// orphaned is the pause of an agent whose program is lost, or whose sandbox cannot be started.
func orphaned(message string) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: agboxv1.PauseReason_PAUSE_REASON_ORPHANED, Message: message}},
	}
}

// nextFailed is about an agent that is to begin an incarnation in a sandbox that is FAILED. It
// decides nothing if the sandbox is to be asked for now. If that was in vain, an agent that has
// begun before is ORPHANED, so its revival policy says what follows, as after a loss of its program.
func nextFailed(r Record, seen Seen, rules Rules, now time.Time) (step Step, decided bool) {
	why := "Its sandbox failed: " + seen.SandboxError
	orphan := r.State == Paused && r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_ORPHANED
	tried := seen.Ensured >= maxEnsured || seen.Gone && seen.Ensured > 0
	moves := seen.Gone && r.Owned && r.Settled
	switch {
	case moves && rules.Revival != Revive && !orphan:
		return emit(orphaned(why), "the container of its sandbox is gone, and its revival policy decides"), true
	case moves && seen.Busy:
		return Step{Wake: now.Add(busyPause)}, true
	case moves:
		return Step{Do: Move, Why: "the container of its sandbox is gone"}, true
	case seen.Gone && seen.Kept:
		return Step{}, true // the owner of the sandbox takes it along
	case seen.Hopeless, r.Incarnations == 0 && (r.Owned || seen.Ensured >= maxEnsured && !seen.Full):
		// A sandbox of others may have failed a moment ago, and can be resumed.
		return emit(failed(agboxv1.ErrorReason_SANDBOX_NOT_READY, why, 0), "its sandbox failed"), true
	case r.Incarnations > 0 && tried && !seen.Full && (!orphan || r.Pause.Woken):
		return emit(orphaned(why), "the sandbox in which it is to go on cannot be started"), true
	}
	due := seen.EnsuredAt.Add(min(ensurePause<<min(max(0, seen.Ensured-1), 8), maxRoomPause))
	return Step{Wake: due}, seen.Ensured > 0 && now.Before(due)
}

// orphans reports whether an end is the loss of a container, an engine or a host.
func orphans(end *agboxv1.IncarnationEnd) bool {
	return end.GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST && !end.GetOomKilled()
}
