package retention

import (
	"context"
	"slices"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// passAgents drops the deleted agents that were kept long enough, then deletes those that
// have ended long enough ago. So whoever watches agents has until the next pass to see a
// deletion.
func (k *Keeper) passAgents(ctx context.Context) {
	k.dropAgents(ctx)
	over := k.ledger.Agents(func(a ledger.Agent) bool { return a.Over() })
	for _, a := range slices.Backward(over) { // children are younger than their parent
		if k.now().Before(a.EndedAt.Add(k.rules.KeepAgents)) || k.needed(a) {
			continue
		}
		if _, err := k.ledger.DeleteAgent(ctx, a.ID); err != nil && ctx.Err() == nil {
			k.log.Warn("an agent that has ended cannot be deleted; the next pass retries", "agent_id", a.ID, "error", err)
		}
	}
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

// dropAgents drops the deleted agents that were kept long enough. It reads the record of
// each only once.
func (k *Keeper) dropAgents(ctx context.Context) {
	past, err := k.ledger.PastAgents(ctx)
	if err != nil {
		if ctx.Err() == nil {
			k.log.Warn("cannot list the deleted agents", "error", err)
		}
		return
	}
	checked := make(map[string]checkResult, len(past))
	for _, id := range past {
		before, known := k.agents[id]
		if known && before.failure == "" && k.now().Before(before.due) {
			checked[id] = before
			continue
		}
		due, err := k.dropAgent(ctx, id)
		if err != nil && ctx.Err() == nil && err.Error() != before.failure {
			k.log.Warn("a deleted agent cannot be removed; the next pass retries", "agent_id", id, "error", err)
		}
		if err != nil {
			checked[id] = checkResult{failure: err.Error()}
		} else if !due.IsZero() {
			checked[id] = checkResult{due: due}
		}
	}
	k.agents = checked
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
		return due, nil
	}
	return time.Time{}, k.ledger.DropAgent(ctx, id)
}
