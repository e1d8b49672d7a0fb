package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
)

// Short names for reasons of pauses.
const (
	forRequest = agboxv1.PauseReason_PAUSE_REASON_REQUEST
	forDrain   = agboxv1.PauseReason_PAUSE_REASON_DRAINED
	forIdle    = agboxv1.PauseReason_PAUSE_REASON_IDLE

	forApproval = agboxv1.PauseReason_PAUSE_REASON_APPROVAL
)

// RequestDrain records the wish that an agent saves its work and is PAUSED until somebody
// resumes it. It does nothing if that was requested before.
func (l *Ledger) RequestDrain(ctx context.Context, id string) (Agent, error) {
	return l.requestOf(ctx, id, func(t *agentTxn) error {
		switch a := t.a; {
		case a.Over():
			return cannot(a, "drained", "it has ended")
		case a.Kill != nil, a.PauseWanted.GetReason() == forRequest,
			a.PauseWanted == nil && a.State == agents.Paused && a.Pause.Reason == forRequest && !a.Pause.Woken:
			return errNothing
		}
		return t.wantPause(forRequest, "A user drained it.")
	})
}

// WakeAgent lets an agent go on that was drained, or that idles. One that still saves its
// work goes on when it has. It does nothing to an agent that is about to go on.
func (l *Ledger) WakeAgent(ctx context.Context, id string) (Agent, error) {
	return l.requestOf(ctx, id, func(t *agentTxn) error {
		switch a := t.a; {
		case a.Over():
			return cannot(a, "resumed", "spawn a new agent to repeat its work")
		case a.PauseWanted.GetReason() == forRequest: // the drain is not taken back
			return t.wantPause(forDrain, "A user resumed it while it was drained.")
		case a.PauseWanted.GetReason() == forDrain: // it goes on when it has saved its work
			return errNothing
		case a.State != agents.Paused:
			return cannot(a, "resumed", "it was not drained")
		case a.Pause.Woken:
			return errNothing
		case a.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_CRASH:
			return cannot(a, "resumed", fmt.Sprintf("it is tried again at %s", a.Pause.WakeAt.UTC().Format(time.RFC3339)))
		case a.Suspended():
			return cannot(a, "resumed", fmt.Sprintf("nobody holds it, and \"agbox agent hold %s\" does", id))
		case a.AwaitsApproval() && a.Pause.Reason == forApproval:
			return cannot(a, "resumed", fmt.Sprintf("\"agbox agent approve %s\" or \"agbox agent deny %s\" decides", id, id))
		case a.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_ORPHANED:
			return cannot(a, "resumed", fmt.Sprintf("\"agbox agent resolve --revive %s\" lets it go on", id))
		case a.Pause.Reason != forRequest && a.Pause.Reason != forDrain && a.Pause.Reason != forIdle:
			return cannot(a, "resumed", fmt.Sprintf("\"agbox agent inspect %s\" says what it waits for", id))
		}
		return t.wake(&agboxv1.AgentWake{By: "a user"})
	})
}

// wake appends that the agent may go on.
func (t *agentTxn) wake(w *agboxv1.AgentWake) error {
	return t.append(t.a.ID, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: w},
	})
}

// wantPause appends the wish for a pause. It replaces an earlier one.
func (t *agentTxn) wantPause(reason agboxv1.PauseReason, message string) error {
	return t.append(t.a.ID, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: reason, Message: message}},
	})
}

// cannot refuses a request that the state of an agent does not allow.
func cannot(a Agent, verb, why string) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is %s and cannot be %s: %s.", a.Called(), a.Word(), verb, why).With("agent_id", a.ID)
}
