package incarnations

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// openHold makes an agent a holder of a descendant. Others it may not hold: two agents that
// hold each other would never be suspended.
func (r *Runner) openHold(ctx context.Context, a ledger.Agent, ref string) (any, bool, error) {
	target, err := r.descendant(a, ref)
	if err != nil {
		return nil, false, err
	}
	if !a.Reaches(target.Record, a.Parent) {
		return nil, false, fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_STACK_BORDER,
			"Agent %s is the root of a stack, and only its parent holds it from outside of the stack.", target.ID).With("agent_id", target.ID)
	}
	target, err = r.ledger.OpenHold(ctx, target.ID, agents.AgentHolder(a.ID), 0)
	if err != nil {
		return nil, false, err
	}
	r.enqueue(target.ID)
	return childOf(target), false, nil
}

// closeHold ends the hold of an agent on another one.
func (r *Runner) closeHold(ctx context.Context, a ledger.Agent, ref string) (any, bool, error) {
	holder := agents.AgentHolder(a.ID)
	held := r.ledger.Held(holder)
	at := slices.IndexFunc(held, func(h ledger.Agent) bool { return h.ID == ref || h.Name == ref })
	if at < 0 {
		target, err := r.descendant(a, ref)
		if err != nil {
			return nil, false, err
		}
		return childOf(target), false, nil // closed before
	}
	target, err := r.ledger.CloseHold(ctx, held[at].ID, holder, "the agent closed it")
	if err != nil {
		return nil, false, err
	}
	r.enqueue(target.ID)
	return childOf(target), false, nil
}

// heldStream returns the id or name of the agent that a stream keeps alive: agent:NAME.
func heldStream(stream string) (ref string, is bool) { return strings.CutPrefix(stream, "agent:") }
