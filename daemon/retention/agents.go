package retention

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// passAgents drops the deleted agents that were kept long enough, then deletes those that
// have ended long enough ago. So whoever watches agents has until the next pass to see a
// deletion. all looks at those that are not due, too.
func (k *Keeper) passAgents(ctx context.Context, all bool) {
	ids := k.ledger.TouchedAgents()
	k.agents.take(k.now(), all, ids)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		k.agents.set(id, k.checkAgent(ctx, id))
	}
	going := k.ledger.EndedBeyond(k.now().Add(-k.rules.KeepAgents), k.now().Add(-machine.AtLeast), k.rules.MaxAgents)
	for _, a := range slices.Backward(going) { // children are younger than their parent
		if k.needed(a) {
			continue
		}
		if _, err := k.ledger.DeleteAgent(ctx, a.ID); err != nil && ctx.Err() == nil {
			k.log.Warn("an agent that has ended cannot be deleted; the next pass retries", "agent_id", a.ID, "error", err)
		}
	}
}

// checkAgent trims an agent that has not ended, or drops a deleted one. It returns when to look
// at it again even if nothing happens until then.
func (k *Keeper) checkAgent(ctx context.Context, id string) (due time.Time) {
	a, exists := k.ledger.Agent(id)
	switch {
	case !exists:
		delete(k.trimmed, id)
		return k.checkDeleted(ctx, id)
	case a.Over():
		delete(k.trimmed, id)
		return time.Time{}
	}
	return k.trimAgent(ctx, a)
}

// keptOfAgents is the part of MaxEvents that stays whatever it says when an agent has more.
const keptOfAgents = 10

// agentTrim is the last trim of an agent that has not ended: its newest event then, above which
// sequence there may be too many again, and when those may go that were too young. The time is
// zero if there were none.
type agentTrim struct {
	seen, above uint64
	again       time.Time
}

// trimAgent removes events of an agent that has not ended and has more than MaxEvents. They are
// read again only once there can be more than that, or a tenth more than must stay.
func (k *Keeper) trimAgent(ctx context.Context, a ledger.Agent) (again time.Time) {
	last, known := k.trimmed[a.ID]
	if !known {
		last.above = uint64(k.rules.MaxEvents)
	}
	if a.LastSequence <= last.above && (last.again.IsZero() || k.now().Before(last.again)) {
		return last.again
	}
	left, err := k.ledger.TrimAgent(ctx, a.ID, k.rules.MaxEvents/keptOfAgents, k.now().Add(-machine.AtLeast))
	if err != nil {
		if ctx.Err() == nil {
			k.log.Warn("old events of an agent cannot be removed; the next pass retries", "agent_id", a.ID, "error", err)
		}
		return k.now()
	}
	next := agentTrim{seen: a.LastSequence, above: a.LastSequence + uint64(max(k.rules.MaxEvents-left, k.rules.MaxEvents/keptOfAgents, 1))}
	if left > k.rules.MaxEvents && a.LastSequence != last.seen {
		next.again = k.now().Add(machine.AtLeast)
	}
	k.trimmed[a.ID] = next
	return next.again
}

// needed reports whether the agent's own sandbox is still to be removed, which is done in
// a round of the agent, or another agent needs its record.
func (k *Keeper) needed(a ledger.Agent) bool {
	if len(k.ledger.Children(a.ID)) > 0 || len(k.ledger.Followers(a.ID)) > 0 {
		return true
	}
	sb, exists := k.ledger.Sandbox(a.SandboxID)
	return a.Owned && exists && sb.Want != machine.WantDeleted
}

// checkDeleted drops an agent that is not in memory if it was deleted and kept long enough;
// otherwise it returns when that will be.
func (k *Keeper) checkDeleted(ctx context.Context, id string) (due time.Time) {
	due, err := k.dropAgent(ctx, id)
	if err == nil {
		delete(k.agentFailures, id)
		return due
	}
	if ctx.Err() == nil && err.Error() != k.agentFailures[id] {
		k.log.Warn("a deleted agent cannot be removed; the next pass retries", "agent_id", id, "error", err)
		k.agentFailures[id] = err.Error()
	}
	return k.now()
}

// dropAgent removes the files of a deleted agent, and drops it if it was kept long enough;
// otherwise it returns when that will be.
func (k *Keeper) dropAgent(ctx context.Context, id string) (due time.Time, err error) {
	a, err := k.ledger.PastAgent(ctx, id)
	if err != nil || !a.Deleted {
		return time.Time{}, err
	}
	if err := k.logs.RemoveAgent(id); err != nil {
		return time.Time{}, err
	}
	if due := a.EndedAt.Add(k.rules.KeepAgents); k.now().Before(due) {
		if _, living := k.ledger.Sandbox(a.SandboxID); !living {
			k.sandboxes.set(a.SandboxID, k.now()) // of a deleted one less has to stay now
		}
		return due, nil
	}
	if k.ledger.Spawner(id) { // a wait for a tree finds those below by its record
		return k.now().Add(k.rules.KeepAgents), nil
	}
	return time.Time{}, k.ledger.DropAgent(ctx, id)
}
