package retention

import (
	"context"
	"slices"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/machine/agent"
)

// passAgents drops the deleted agents that were kept long enough, then deletes those that
// have ended long enough ago. So whoever watches agents has until the next pass to see a
// deletion.
func (k *Keeper) passAgents(ctx context.Context) {
	k.trimAgents(ctx)
	k.dropAgents(ctx)
	due, count := k.ledger.EndedBefore(k.now().Add(-k.rules.KeepAgents))
	if count > k.rules.MaxAgents {
		due = k.withExcess(due, count-k.rules.MaxAgents)
	}
	for _, a := range slices.Backward(due) { // children are younger than their parent
		if k.needed(a) {
			continue
		}
		if _, err := k.ledger.DeleteAgent(ctx, a.ID); err != nil && ctx.Err() == nil {
			k.log.Warn("an agent that has ended cannot be deleted; the next pass retries", "agent_id", a.ID, "error", err)
		}
	}
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

// trimAgents removes events of agents that have not ended and have more than MaxEvents. Those of
// one are read again only once there can be more than that, or a tenth more than must stay.
func (k *Keeper) trimAgents(ctx context.Context) {
	trimmed := make(map[string]agentTrim)
	living := k.ledger.Living()
	if root, exists := k.ledger.Agent(agent.Init); exists {
		living = append(living, root)
	}
	for _, a := range living {
		last, known := k.trimmed[a.ID]
		if !known {
			last.above = uint64(k.rules.MaxEvents)
		}
		if a.LastSequence > last.above || !last.again.IsZero() && !k.now().Before(last.again) {
			last = k.trimAgent(ctx, a, last)
		}
		trimmed[a.ID] = last
	}
	k.trimmed = trimmed
}

func (k *Keeper) trimAgent(ctx context.Context, a ledger.Agent, last agentTrim) agentTrim {
	left, err := k.ledger.TrimAgent(ctx, a.ID, k.rules.MaxEvents/keptOfAgents, k.now().Add(-machine.AtLeast))
	if err != nil {
		if ctx.Err() == nil {
			k.log.Warn("old events of an agent cannot be removed; the next pass retries", "agent_id", a.ID, "error", err)
		}
		return last
	}
	next := agentTrim{seen: a.LastSequence, above: a.LastSequence + uint64(max(k.rules.MaxEvents-left, k.rules.MaxEvents/keptOfAgents, 1))}
	if left > k.rules.MaxEvents && a.LastSequence != last.seen {
		next.again = k.now().Add(machine.AtLeast)
	}
	return next
}

// withExcess adds so many of the ended agents to those that are due, if they are not among them:
// the ones that ended first, but none of the last minute.
func (k *Keeper) withExcess(due []ledger.Agent, excess int) []ledger.Agent {
	over, _ := k.ledger.EndedBefore(k.now().Add(-machine.AtLeast))
	oldest := slices.SortedFunc(slices.Values(over), func(a, b ledger.Agent) int { return a.EndedAt.Compare(b.EndedAt) })
	going := make(map[string]bool)
	for _, a := range append(oldest[:min(excess, len(oldest))], due...) {
		going[a.ID] = true
	}
	all, _ := k.ledger.EndedBefore(k.now())
	return slices.DeleteFunc(all, func(a ledger.Agent) bool { return !going[a.ID] })
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
		if k.checked[a.SandboxID].lastSequence == 0 {
			delete(k.checked, a.SandboxID) // of a deleted sandbox less has to stay now
		}
		return due, nil
	}
	return time.Time{}, k.ledger.DropAgent(ctx, id)
}
