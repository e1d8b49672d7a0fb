package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// PauseAgent pauses an agent until somebody approves or denies. An incarnation that runs goes
// on running. It does nothing to an agent that waits for an approval already.
func (l *Ledger) PauseAgent(ctx context.Context, id, message string) (Agent, error) {
	return l.requestOfAgent(ctx, id, func(t *agentTxn) error {
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
		return t.append(agents.PausedFor(forApproval, message))
	})
}

// WakeAgent lets an agent go on that was drained, or that idles. One that still saves its
// work goes on when it has. It does nothing to an agent that is about to go on.
func (l *Ledger) WakeAgent(ctx context.Context, id string) (Agent, error) {
	return l.requestOfAgent(ctx, id, func(t *agentTxn) error {
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

// ApproveAgent records the decision about an agent that waits for an approval. Until the agent
// goes on, the same decision again changes nothing, and the other one is refused.
func (l *Ledger) ApproveAgent(ctx context.Context, id string, approval agboxv1.AgentApproval, message string) (Agent, error) {
	return l.requestOfAgent(ctx, id, func(t *agentTxn) error {
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

// ResolveAgent decides about an orphaned agent: it is woken, or it ends. An agent that was
// woken before stays woken.
func (l *Ledger) ResolveAgent(ctx context.Context, id string, verdict agboxv1.AgentVerdict) (Agent, error) {
	return l.requestOfAgent(ctx, id, func(t *agentTxn) error {
		switch reap := verdict == agboxv1.AgentVerdict_AGENT_VERDICT_REAP; {
		case t.a.State != agents.Paused || t.a.Pause.Reason != agboxv1.PauseReason_PAUSE_REASON_ORPHANED:
			return notOrphaned(t.a)
		case !reap && t.a.Pause.Woken:
			return errNothing
		case !t.a.Orphaned():
			return cannot(t.a, "reaped", fmt.Sprintf("its next program has begun, and \"agbox agent kill %s\" ends it", t.a.Called()))
		case reap:
			return t.append(agents.Reaped("A user decided to reap it after this loss: " + t.a.Pause.Message))
		}
		return t.wake(&agboxv1.AgentWake{By: "a user"})
	})
}

// RequestDrain records the wish that an agent saves its work and is PAUSED until somebody
// resumes it. It does nothing if that was requested before.
func (l *Ledger) RequestDrain(ctx context.Context, id string) (Agent, error) {
	return l.requestOfAgent(ctx, id, func(t *agentTxn) error {
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

// RequestKill records the wish to end an agent. A stronger wish replaces a weaker one, and so
// does one that says what becomes of the children. It does nothing to an agent that has ended.
func (l *Ledger) RequestKill(ctx context.Context, id string, kill *agboxv1.AgentKill) (Agent, error) {
	return l.requestOfAgent(ctx, id, func(t *agentTxn) error {
		if t.a.Over() {
			return errNothing
		}
		wish := agents.Stronger(t.a.Kill, kill)
		if wish == nil {
			return errNothing
		}
		return t.append(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED, Details: &agboxv1.AgentEvent_Kill{Kill: wish},
		})
	})
}

// OpenHold makes somebody a holder of an agent. An agent that nobody has held goes on. linger
// is how long the hold of a client stays after its connection was lost; it is 0 for agents.
// It does nothing if the agent has that holder, with that linger.
func (l *Ledger) OpenHold(ctx context.Context, id, holder string, linger time.Duration) (Agent, error) {
	return l.requestOfAgent(ctx, id, func(t *agentTxn) error {
		switch a := t.a; {
		case a.Over():
			return cannot(a, "held", "it has ended")
		case slices.ContainsFunc(a.Holders, func(h agents.Holder) bool { return h.ID == holder && h.Linger == linger }):
			return errNothing
		}
		return t.open(holder, linger)
	})
}

// CloseHold ends a hold. It does nothing if the agent has no such holder. why is for people.
func (l *Ledger) CloseHold(ctx context.Context, id, holder, why string) (Agent, error) {
	return l.EndHold(ctx, id, holder, why, nil)
}

// EndHold is CloseHold if the condition still holds when it is its turn. The condition must
// not wait; nil holds always.
func (l *Ledger) EndHold(ctx context.Context, id, holder, why string, still func(Agent) bool) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error {
		switch {
		case !t.a.Exists():
			return agentNotFound(id)
		case !t.a.HeldBy(holder), still != nil && !still(t.a):
			return errNothing
		}
		return t.append(agents.Closed(holder, why))
	})
}

// OpenStream lets an agent get all messages that others send on a stream from now on. It
// does nothing if the agent has that open.
func (l *Ledger) OpenStream(ctx context.Context, id, stream string) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error { return t.openStream(stream) })
}

func (t *agentTxn) openStream(stream string) error {
	switch a := t.a; {
	case !a.Exists():
		return agentNotFound(t.id)
	case a.Opens(stream):
		return errNothing
	case len(a.Streams) >= agents.MaxStreams:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Agent %s has %d streams open already, which is the limit; close some first.", t.id, agents.MaxStreams).With("agent_id", t.id)
	}
	opened, _ := t.tx.Value(streamOverlay{stream}).([]string)
	t.tx.SetValue(streamOverlay{stream}, append(slices.Clone(opened), t.id))
	return t.append(agents.StreamOpened(stream))
}

// CloseStream ends that. It does nothing if the agent has no such stream open.
func (l *Ledger) CloseStream(ctx context.Context, id, stream string) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error {
		switch {
		case !t.a.Exists():
			return agentNotFound(id)
		case !t.a.Opens(stream):
			return errNothing
		}
		return t.append(agents.StreamClosed(stream))
	})
}

// MoveAgent makes a new sandbox for an agent whose own one is lost, from the same spec, and
// requests the removal of the old one: all in one transaction. The new sandbox gets the name of
// the old one at once, and the other agents of that, its children for example, move too. It does
// nothing to an agent that has changed since it was seen, and nothing while another agent there
// has an incarnation whose end is not decided about.
func (l *Ledger) MoveAgent(ctx context.Context, seen Agent) (Agent, error) {
	old, exists := l.Sandbox(seen.SandboxID)
	if !exists {
		return seen, nil // its round says what follows
	}
	old, err := l.Reveal(ctx, old)
	if err != nil {
		return seen, err
	}
	// Own sandboxes of agents are named "agent-...", so this is no other agent's.
	id := fmt.Sprintf("remade-%d-%s", seen.Incarnations+1, seen.ID)
	spec, nonce := proto.CloneOf(old.Spec), ids.New()
	spec.Name = old.Name
	shown, err := l.hide(ctx, id, spec)
	if err != nil {
		return seen, err
	}
	moved := &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_MOVED, Details: &agboxv1.AgentEvent_Moved{Moved: &agboxv1.AgentMoved{SandboxId: id}},
	}
	return l.updateAgent(ctx, seen.ID, func(t *agentTxn) error {
		if t.a.SandboxID != seen.SandboxID || !t.a.Owned || !t.a.Settled || !agents.Legal(t.a.Record, moved) || l.busyIn(t.tx, old.ID) {
			return errNothing
		}
		_, err := l.within(t.tx, id, func(s *txn) error {
			switch s.nameOwner(old.Name) {
			case "":
			case old.ID:
				s.tx.SetValue(nameOverlay{old.Name}, "")
			default: // somebody took it once nothing of the old one ran
				spec.Name, shown.Name = "", ""
			}
			return s.create(nonce, spec, shown, RequestKey{})
		})
		if err != nil {
			return err
		}
		if err := l.wantDeleted(t.tx, old.ID); err != nil {
			return err
		}
		if err := l.moveOthers(t.tx, old.ID, seen.ID, moved); err != nil {
			return err
		}
		return t.append(moved)
	})
}

// moveOthers moves the agents of a sandbox that have not ended, but for the one that owns it. One
// that is to end needs no sandbox.
func (l *Ledger) moveOthers(tx *store.Tx, sandboxID, owner string, moved *agboxv1.AgentEvent) error {
	for _, a := range l.agentsIn(tx, sandboxID) {
		if a.ID == owner || !agents.Legal(a.Record, moved) {
			continue
		}
		if _, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error { return t.append(moved) }); err != nil {
			return err
		}
		l.enqueue(tx, a.ID)
	}
	return nil
}

// busyIn reports whether agents of a sandbox have incarnations whose ends are not decided about.
func (l *Ledger) busyIn(tx *store.Tx, sandboxID string) bool {
	return slices.ContainsFunc(l.agentsIn(tx, sandboxID), func(a Agent) bool { return a.Incarnation != nil || a.Undecided })
}

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
		return t.append(&agboxv1.AgentEvent{
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
		return t.append(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_RESUMED, State: state, Incarnation: q.Incarnation, Request: q.Number, Observation: observation,
			Details: &agboxv1.AgentEvent_Resume{Resume: &agboxv1.AgentResume{Replan: replan}},
		})
	})
}
