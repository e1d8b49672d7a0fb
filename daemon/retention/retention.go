// Package retention bounds what sandboxes leave behind. It removes what has been kept long
// enough: deleted sandboxes, finished execs, old events, and their logs, and agents that have
// ended. It stops sandboxes that put too much into their folders (Room). Package machine has the rules for what to remove;
// this package removes it in the background, a little at a time.
//
// It also keeps what outlasts a sandbox: the newest checkpoints of agents (Checkpoints).
//
// Logs are removed before their record. If a crash happens in between, the next pass
// repeats the removal, because the record still exists and is still too old. Until then,
// a reader of the log gets a notice that it is shorter than the command's output or, if
// the whole directory is missing, that it cannot be read.
package retention

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// Logs removes log files. Missing files are not an error.
type Logs interface {
	// RemoveExec removes the logs of one exec.
	RemoveExec(ctx context.Context, sandboxID, execID string) error
	// SlimSandbox removes the files of a deleted sandbox that nobody can ask for any more, but
	// those of execs that keep names. It costs little if there are none.
	SlimSandbox(ctx context.Context, sandboxID string, keep func(execID string) bool) error
	// RemoveSandbox removes all logs of a sandbox.
	RemoveSandbox(ctx context.Context, sandboxID string) error
	// RemoveAgent removes the checkpoints of an agent.
	RemoveAgent(agentID string) error
}

// Options has the dependencies and limits of a Keeper.
type Options struct {
	Ledger *ledger.Ledger
	Logs   Logs
	Rules  machine.Retention
	Now    func() time.Time
	Log    *slog.Logger
}

// Keeper applies the retention rules to an install. Only one goroutine may use it.
type Keeper struct {
	ledger *ledger.Ledger
	logs   Logs
	rules  machine.Retention
	now    func() time.Time
	log    *slog.Logger
	// sandboxes and agents say when something of each becomes due. Those without new events in
	// which nothing is due are not looked at.
	sandboxes, agents agenda
	// passed is the time of the last pass.
	passed time.Time
	// full has the sequence of each living sandbox up to which it cannot have too much.
	full map[string]uint64
	// failures has the last reported failure of a sandbox, or of an agent that is not in memory.
	failures, agentFailures map[string]string
	// trimmed has the result of the last trim of agents that have not ended.
	trimmed map[string]agentTrim
}

// passEvery is the maximum time between two passes. Passes are timed because age is not
// an event that one can wait for; a delay of a minute does no harm.
const passEvery = time.Minute

// page bounds the execs that are removed in one transaction, because other transactions
// wait for it.
const page = 64

// New returns a Keeper. It removes nothing before Run or Pass.
func New(o Options) *Keeper {
	return &Keeper{
		ledger: o.Ledger, logs: o.Logs, rules: o.Rules, log: o.Log,
		now:  func() time.Time { return o.Now().Round(0) }, // events have the time of the wall clock
		full: make(map[string]uint64), failures: make(map[string]string), agentFailures: make(map[string]string), trimmed: make(map[string]agentTrim),
	}
}

// Run makes passes until ctx is cancelled.
func (k *Keeper) Run(ctx context.Context) {
	every := min(passEvery, max(k.rules.KeepDeleted/4, 100*time.Millisecond), max(k.rules.KeepExecs/4, 100*time.Millisecond), max(k.rules.KeepAgents/4, 100*time.Millisecond))
	tick := time.NewTicker(every)
	defer tick.Stop()
	for { // the first pass waits too, to leave the machine to the daemon's start
		select {
		case <-tick.C:
			k.Pass(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Pass looks at the sandboxes and agents that have new events, and at those of which something
// is due. A failure for one of them is logged once, retried in the next pass, and does not affect
// the others.
func (k *Keeper) Pass(ctx context.Context) {
	back := k.setBack()
	k.passAgents(ctx, back)
	surplus := k.ledger.Surplus()
	ids := k.ledger.Touched()
	k.sandboxes.take(k.now(), back, ids)
	for id := range surplus {
		ids[id] = struct{}{}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		due, err := k.check(ctx, id, surplus[id])
		if failure := k.report(ctx, id, k.failures[id], err); failure != "" {
			k.failures[id], due = failure, k.now()
		} else {
			delete(k.failures, id)
		}
		k.sandboxes.set(id, due)
	}
	if err := k.ledger.SweepKeys(); err != nil {
		k.log.Warn("unused keys of secret variables cannot be removed; the next pass retries", "error", err)
	}
}

// setBack reports whether the clock was set back since the pass before. What that pass has noted as
// due may then come late by any time, so all is looked at again.
func (k *Keeper) setBack() bool {
	before := k.passed
	k.passed = k.now()
	return k.passed.Before(before)
}

// check removes what is due of one sandbox, and returns when more will be. What came since it was
// read is younger than what is due first, so it is read again only then, or if it has too much.
func (k *Keeper) check(ctx context.Context, id string, surplus bool) (due time.Time, err error) {
	sb, living := k.ledger.Sandbox(id)
	if !living {
		delete(k.full, id)
		return k.drop(ctx, id, surplus)
	}
	if due := k.sandboxes.at(id); !due.IsZero() && sb.LastSequence <= k.full[id] {
		return due, nil
	}
	trim, err := k.trim(ctx, id)
	k.full[id] = sb.LastSequence + uint64(trim.Room)
	if due = k.now().Add(k.rules.KeepExecs); !trim.Due.IsZero() && trim.Due.Before(due) {
		due = trim.Due
	}
	return due, err
}

// report logs a failure unless it is the same as before, and returns its text.
func (k *Keeper) report(ctx context.Context, sandboxID, before string, err error) string {
	if err == nil || ctx.Err() != nil {
		return ""
	}
	if err.Error() != before {
		k.log.Warn("expired execs, events or logs cannot be removed; the next pass retries", "sandbox_id", sandboxID, "error", err)
	}
	return err.Error()
}

// trim removes what is too old or too much in a sandbox that is not deleted.
func (k *Keeper) trim(ctx context.Context, id string) (machine.Trim, error) {
	history, recorded, err := k.ledger.History(ctx, id)
	if err != nil {
		return machine.Trim{}, err
	}
	trim := history.Trim(k.rules, func(execID string) bool { return recorded[execID] }, k.now())
	err = k.forget(ctx, id, trim.Parts)
	if n := len(trim.Parts); n > 0 && err == nil {
		k.log.Debug("removed old execs and events", "sandbox_id", id, "count", n)
	}
	return trim, err
}

// removeLogs removes the logs of each exec. It returns the parts whose records can be
// removed next: an exec keeps its record if its logs cannot be removed.
func (k *Keeper) removeLogs(ctx context.Context, sandboxID string, parts []machine.TrimPart) (gone []machine.TrimPart, err error) {
	for _, part := range parts {
		if part.ExecID != "" {
			if failed := k.logs.RemoveExec(ctx, sandboxID, part.ExecID); failed != nil {
				err = errors.Join(err, fmt.Errorf("logs of exec %s: %w", part.ExecID, failed))
				continue
			}
		}
		gone = append(gone, part)
	}
	return gone, err
}

// forget removes parts in pages, logs before records.
func (k *Keeper) forget(ctx context.Context, id string, parts []machine.TrimPart) error {
	var failed error
	for len(parts) > 0 && ctx.Err() == nil {
		n := min(page, len(parts))
		gone, err := k.removeLogs(ctx, id, parts[:n])
		failed = errors.Join(failed, err)
		parts = parts[n:]
		if err := k.ledger.Forget(ctx, id, gone); err != nil {
			return errors.Join(failed, err)
		}
	}
	return errors.Join(failed, ctx.Err())
}

// drop removes a deleted sandbox if it was kept long enough or there are too many of its kind;
// otherwise it returns when that will be. due is zero if the sandbox was removed or is not deleted.
func (k *Keeper) drop(ctx context.Context, id string, surplus bool) (due time.Time, err error) {
	at, deleted, err := k.ledger.DeletedAt(ctx, id)
	if err != nil || !deleted {
		return time.Time{}, err
	}
	if due := at.Add(k.rules.KeepDeleted); !surplus && k.now().Before(due) {
		return due, k.logs.SlimSandbox(ctx, id, func(execID string) bool {
			agentID, _ := agents.OfExec(execID)
			_, kept := k.ledger.Agent(agentID) // it has its journal there
			return kept
		})
	}
	if err := k.logs.RemoveSandbox(ctx, id); err != nil {
		return time.Time{}, err
	}
	history, _, err := k.ledger.History(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	// Remove most of it in pages, so that the final transaction is short.
	if err := k.forget(ctx, id, history.All()); err != nil {
		return time.Time{}, err
	}
	if err := k.ledger.Drop(ctx, id); err != nil {
		return time.Time{}, err
	}
	k.log.Info("removed the record of a deleted sandbox", "sandbox_id", id, "deleted_at", at)
	return time.Time{}, nil
}

// agenda says when each of many ids is due next, so that a pass looks at no others.
type agenda struct {
	of    map[string]*entry
	queue queue
}

type entry struct {
	id    string
	at    time.Time
	index int // in the queue
}

// set replaces the time of an id. Zero means that it is not due any more.
func (a *agenda) set(id string, at time.Time) {
	e, known := a.of[id]
	switch {
	case at.IsZero() && !known:
	case at.IsZero():
		heap.Remove(&a.queue, e.index)
		delete(a.of, id)
	case known:
		e.at = at
		heap.Fix(&a.queue, e.index)
	default:
		if a.of == nil {
			a.of = make(map[string]*entry)
		}
		a.of[id] = &entry{id: id, at: at}
		heap.Push(&a.queue, a.of[id])
	}
}

// at is when an id is due; zero means never.
func (a *agenda) at(id string) time.Time {
	if e, known := a.of[id]; known {
		return e.at
	}
	return time.Time{}
}

// take adds the ids that are due to a set, and removes them. all is for those that are not due, too.
func (a *agenda) take(now time.Time, all bool, due map[string]struct{}) {
	for len(a.queue) > 0 && (all || !now.Before(a.queue[0].at)) {
		id := a.queue[0].id
		due[id] = struct{}{}
		a.set(id, time.Time{})
	}
}

// queue implements heap.Interface: the first entry is due first.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	e := x.(*entry)
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

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
