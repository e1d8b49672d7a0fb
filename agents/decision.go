package agents

import (
	"cmp"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Approval is the decision with which the agent goes on, and what the person who decided said.
// It is unspecified if there is none.
func (r Record) Approval() (agboxv1.AgentApproval, string) {
	if r.Decision == nil {
		return agboxv1.AgentApproval_AGENT_APPROVAL_UNSPECIFIED, ""
	}
	return r.Decision.Approval, r.Decision.Answer
}

// Verdict says in words what was decided. It is empty if nobody has decided.
func (r Record) Verdict() string {
	switch approval, _ := r.Approval(); approval {
	case agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED:
		return "approved"
	case agboxv1.AgentApproval_AGENT_APPROVAL_DENIED:
		return "denied"
	}
	return ""
}

// PauseNote says why a paused agent is shown by its Word: what it waits for, or that somebody has
// ended the pause and its program has not gone on yet.
func (r Record) PauseNote() string {
	p, verdict := r.Pause, r.Verdict()
	ended := "It was " + cmp.Or(verdict, "woken")
	switch {
	case r.AwaitsApproval() && r.Decision.Message != p.Message:
		return r.Decision.Message + " Besides: " + p.Message
	case !p.Woken && verdict != "":
		return ended + ". Besides: " + p.Message
	case !p.Woken, !waitsForSomebody(p.Reason):
		return p.Message
	case r.Incarnation == nil:
		return ended + ", and goes on in its next incarnation."
	case r.GoesOn() == Planning:
		return ended + ", and its program was asked to plan anew."
	}
	return ended + ", and its program was asked to go on."
}

// asked returns the record with a question. One that nobody has answered stays the same.
func (r Record) asked(message string, at time.Time) Record {
	if !r.Decision.pending() {
		r.Decision = &Decision{Message: message, Since: at}
	}
	if r.State == Paused && r.Pause.Woken {
		pause := r.overDecision(Pause{Since: at, Begun: r.LastSequence})
		r.Pause = &pause
	}
	return r
}

// overDecision returns how a pause is kept. While somebody has to decide, only what
// others have asked for is a pause of its own, since it takes more than the decision to end it.
func (r Record) overDecision(p Pause) Pause {
	if !r.Decision.pending() {
		return p
	}
	switch p.Reason {
	case agboxv1.PauseReason_PAUSE_REASON_REQUEST, agboxv1.PauseReason_PAUSE_REASON_UNHELD:
		return p
	}
	return Pause{Reason: agboxv1.PauseReason_PAUSE_REASON_APPROVAL, Message: r.Decision.Message, Since: p.Since, Begun: p.Begun}
}

// foldWoken ends the pause, or answers the question. The agent goes on once there is neither.
func foldWoken(r Record, ev *agboxv1.AgentEvent) Record {
	if a := ev.GetWake().GetApproval(); a == agboxv1.AgentApproval_AGENT_APPROVAL_UNSPECIFIED {
		r.PauseWanted = nil
		if r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_ORPHANED {
			r.Loss = "" // somebody has decided that it goes on
		}
	} else {
		answered := Decision{Message: r.Pause.Message, Since: r.Pause.Since}
		if r.Decision != nil {
			answered = *r.Decision
		}
		answered.Approval, answered.Answer = a, ev.GetWake().GetMessage()
		r.Decision = &answered
		if r.PauseWanted.GetReason() == agboxv1.PauseReason_PAUSE_REASON_APPROVAL {
			r.PauseWanted = nil // else it would be asked again
		}
		if r.Pause.Reason != agboxv1.PauseReason_PAUSE_REASON_APPROVAL {
			return r // somebody has to resume it, too
		}
	}
	return r.woken(ev)
}

// woken ends the pause by an event, unless somebody still has to decide.
func (r Record) woken(ev *agboxv1.AgentEvent) Record {
	pause := *r.Pause
	if pause.Woken, pause.Observation = true, ev.GetSequence(); r.Decision.pending() {
		pause = r.overDecision(Pause{Since: pause.Since, Begun: ev.GetSequence()})
	}
	r.Pause = &pause
	return r
}
