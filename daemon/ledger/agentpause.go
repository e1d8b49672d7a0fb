package ledger

import (
	"context"
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// PauseAgent pauses an agent until somebody approves or denies. An incarnation that runs goes
// on running. It does nothing to an agent that waits for an approval already.
func (l *Ledger) PauseAgent(ctx context.Context, id, message string) (Agent, error) {
	return l.requestOf(ctx, id, func(t *agentTxn) error {
		switch a := t.a; {
		case a.Over():
			return cannot(a, "paused", "it has ended")
		case a.Kill != nil:
			return cannot(a, "paused", "it is being killed")
		case a.Done != nil:
			return cannot(a, "paused", "it has reported its outcome")
		case a.AwaitsApproval():
			return errNothing
		case a.Undecided: // first the end of its incarnation is answered
			return t.wantPause(forApproval, message)
		}
		return t.append(id, &agboxv1.AgentEvent{
			Type:    agboxv1.AgentEventType_AGENT_PAUSED,
			Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forApproval, Message: message}},
		})
	})
}

// ApproveAgent records the decision about an agent that waits for an approval. Until the agent
// goes on, the same decision again changes nothing, and the other one is refused.
func (l *Ledger) ApproveAgent(ctx context.Context, id string, approval agboxv1.AgentApproval, message string) (Agent, error) {
	return l.requestOf(ctx, id, func(t *agentTxn) error {
		verb := "approved"
		if approval == agboxv1.AgentApproval_AGENT_APPROVAL_DENIED {
			verb = "denied"
		}
		switch made, _ := t.a.Approval(); {
		case made == approval:
			return errNothing
		case t.a.Verdict() != "":
			return cannot(t.a, verb, fmt.Sprintf("it was %s already, and \"agbox agent pause %s\" asks for another decision", t.a.Verdict(), id))
		case !t.a.AwaitsApproval() || t.a.State != agents.Paused:
			return cannot(t.a, verb, "it does not wait for an approval")
		}
		return t.wake(&agboxv1.AgentWake{By: "a user", Approval: approval, Message: message})
	})
}
