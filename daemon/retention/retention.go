// Package retention bounds what sandboxes leave behind. It removes what has been kept long
// enough: deleted sandboxes, finished execs, old events, and their logs, and agents that have
// ended. It stops sandboxes that put too much into their folders (Room). Package machine has the rules for what to remove;
// this package removes it in the background, a little at a time.
//
// Logs are removed before their record. If a crash happens in between, the next pass
// repeats the removal, because the record still exists and is still too old. Until then,
// a reader of the log gets a notice that it is shorter than the command's output or, if
// the whole directory is missing, that it cannot be read.
package retention

import (
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
