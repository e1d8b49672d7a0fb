package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
)

// Asked identifies a request of an incarnation.
type Asked struct {
	Incarnation uint32
	// Number counts the requests of the incarnation from 1.
	Number uint64
}

// answered reports whether an event answers the request already. The error is about a request
// of an incarnation that has ended.
func (t *agentTxn) answered(q Asked) (bool, error) {
	if t.a.Incarnation == nil || t.a.Incarnation.N != q.Incarnation {
		return false, cannot(t.a, "asked for by its program", "that program has ended")
	}
	return t.a.Incarnation.Request >= q.Number, nil
}

// PauseOnRequest pauses an agent whose incarnation asks for it, for the reason APPROVAL or
// IDLE. An agent that is paused stays as it is: it has not gone on since. The same request
// again changes nothing.
func (l *Ledger) PauseOnRequest(ctx context.Context, id string, q Asked, reason agboxv1.PauseReason, message string) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error {
		done, err := t.answered(q)
		switch {
		case err != nil:
			return err
		case done, t.a.State == agents.Paused:
			return errNothing
		case t.a.Done != nil:
			return cannot(t.a, "paused", "it has reported its outcome")
		}
		return t.append(id, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_PAUSED, Incarnation: q.Incarnation, Request: q.Number,
			Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: reason, Message: message}},
		})
	})
}

// ResumeOnRequest lets an agent go on whose incarnation has taken the observation of what
// changed. With replan it plans anew, and the digest of its pause is dropped; so does an agent
// that has to ask for its leases again. The same request again changes nothing.
func (l *Ledger) ResumeOnRequest(ctx context.Context, id string, q Asked, observation uint64, replan bool) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error {
		done, err := t.answered(q)
		switch a := t.a; {
		case err != nil:
			return err
		case done:
			return errNothing
		case a.State != agents.Paused:
			return cannot(a, "resumed", "it is not paused")
		case !a.Pause.Woken:
			return cannot(a, "resumed", "nobody has woken it yet; the request pause waits for that")
		case observation != a.Pause.Observation:
			return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_OBSERVATION_PENDING,
				"Things may have changed while agent %s was paused: take observation %d first, which the request pause answers with, and name it.", id, a.Pause.Observation).With("agent_id", id)
		case !replan && a.Denied():
			return cannot(a, "resumed as it was", "that was denied; plan anew with replan")
		}
		state := agents.Executing
		if replan || len(t.a.Wants) > 0 {
			state = agents.Planning
		}
		return t.append(id, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_RESUMED, State: state, Incarnation: q.Incarnation, Request: q.Number, Observation: observation,
			Details: &agboxv1.AgentEvent_Resume{Resume: &agboxv1.AgentResume{Replan: replan}},
		})
	})
}
