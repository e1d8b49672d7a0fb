package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
)

const forUnheld = agboxv1.PauseReason_PAUSE_REASON_UNHELD

// OpenHold makes somebody a holder of an agent. An agent that nobody has held goes on. linger
// is how long the hold of a client stays after its connection was lost; it is 0 for agents.
// It does nothing if the agent has that holder, with that linger.
func (l *Ledger) OpenHold(ctx context.Context, id, holder string, linger time.Duration) (Agent, error) {
	return l.requestOf(ctx, id, func(t *agentTxn) error {
		switch a := t.a; {
		case a.Over():
			return cannot(a, "held", "it has ended")
		case slices.ContainsFunc(a.Holders, func(h agents.Holder) bool { return h.ID == holder && h.Linger == linger }):
			return errNothing
		}
		return t.open(holder, linger)
	})
}

// open adds a holder, and wakes the agent if that is what it waits for.
func (t *agentTxn) open(holder string, linger time.Duration) error {
	id := t.a.ID
	if len(t.a.Holders) >= agents.MaxHolders && !t.a.HeldBy(holder) {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Agent %s has %d holders already, which is the limit; close some first.", id, agents.MaxHolders).With("agent_id", id)
	}
	if err := t.append(id, agents.Opened(holder, linger)); err != nil {
		return err
	}
	switch {
	case t.a.PauseWanted.GetReason() == forUnheld: // the drain is not taken back
		return t.wantPause(forDrain, "It is held again.")
	case t.a.Suspended():
		return t.wake(&agboxv1.AgentWake{By: holder})
	}
	return nil
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
		return t.append(id, agents.Closed(holder, why))
	})
}
