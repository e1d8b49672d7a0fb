package incarnations

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Hold says that a client is connected that holds an agent. release must be called at the
// end of the connection: the hold then lingers.
func (r *Runner) Hold(agentID, holder string) (release func()) {
	h, key := r.holds, heldBy{agentID, holder}
	h.mu.Lock()
	h.connected[key]++
	delete(h.lost, key)
	h.mu.Unlock()
	return func() {
		a, exists := r.ledger.Agent(agentID)
		now := r.now()
		h.mu.Lock()
		if h.connected[key]--; h.connected[key] == 0 {
			delete(h.connected, key)
			if exists && !a.Over() && a.HeldBy(holder) {
				h.lost[key] = now
			}
		}
		h.mu.Unlock()
		r.enqueue(agentID)
	}
}

// LostHolder returns a holder of an agent that is gone: an agent that has ended, a client
// whose hold has lingered long enough, or an inbox of which all is acknowledged. due is when the next one will have; zero means never.
// A parent that has ended is left out: another agent takes its place.
func (r *Runner) LostHolder(a ledger.Agent) (holder string, due time.Time) {
	for _, h := range a.Holders {
		if id, is := h.Agent(); is {
			if other, exists := r.ledger.Agent(id); id != a.Parent && id != agents.Init && (!exists || other.Over()) {
				return h.ID, due
			}
			continue
		}
		if h.ID == agents.InboxHolder {
			if r.ledger.Unread(a.ID) == 0 {
				return h.ID, due
			}
			continue
		}
		until := r.holds.until(a.ID, h)
		switch {
		case until.IsZero():
		case !r.now().Before(until):
			return h.ID, due
		case due.IsZero(), until.Before(due):
			due = until
		}
	}
	return "", due
}

// until is when the hold of a client ends. It is zero while the client is connected.
func (h *holds) until(agentID string, holder agents.Holder) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := heldBy{agentID, holder.ID}
	if h.connected[key] > 0 {
		return time.Time{}
	}
	from := h.since
	for _, at := range []time.Time{holder.Since, h.lost[key]} {
		if at.After(from) {
			from = at
		}
	}
	return from.Add(holder.Linger)
}

// EndHold records that a holder of an agent is gone, unless it has come back meanwhile.
func (r *Runner) EndHold(ctx context.Context, a ledger.Agent, holder string) error {
	why := "the connection was lost"
	if _, is := (agents.Holder{ID: holder}).Agent(); is {
		why = "it has ended"
	} else if holder == agents.InboxHolder {
		why = "all messages are acknowledged"
	}
	after, err := r.ledger.EndHold(ctx, a.ID, holder, why, func(now ledger.Agent) bool {
		lost, _ := r.LostHolder(now)
		return lost == holder
	})
	if err == nil && !after.HeldBy(holder) {
		r.holds.mu.Lock()
		delete(r.holds.lost, heldBy{a.ID, holder})
		r.holds.mu.Unlock()
	}
	return err
}

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
