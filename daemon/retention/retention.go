// Package retention forgets what was kept long enough: deleted sandboxes,
// finished execs, old events, and their logs. What shall go is machine's rule;
// this package does it in the background, a little at a time.
//
// Logs go before the record that names them. A crash in between is repeated:
// the record is still there, and is found too old again. Until then a reader of
// the log is told that it is shorter than what the command wrote, or, when the
// whole folder is gone, that it cannot be read.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// Logs removes log files. What is not there is no error.
type Logs interface {
	// RemoveExec removes those of one exec.
	RemoveExec(ctx context.Context, sandboxID, execID string) error
	// RemoveSandbox removes those of a whole sandbox.
	RemoveSandbox(ctx context.Context, sandboxID string) error
}

// Options are the parts and figures of a Keeper.
type Options struct {
	Ledger *ledger.Ledger
	Logs   Logs
	Rules  machine.Retention
	Now    func() time.Time
	Log    *slog.Logger
}

// Keeper holds an install to its retention rules. It belongs to one goroutine.
type Keeper struct {
	Options
	// seen is what the last look at each sandbox came to. A sandbox in which
	// nothing happened since, and nothing is due, is not read again.
	seen map[string]look
}

type look struct {
	lastSequence uint64
	due          time.Time // zero: never
	// trouble is the failure that was last reported; empty if all went well.
	trouble string
}

// passEvery is the pause between two passes, if nothing has a shorter life:
// age is no event that could be waited for, and a minute more does no harm.
const passEvery = time.Minute

// page is how many execs are forgotten in one transaction: others wait for it.
const page = 64

// New makes a Keeper; nothing is removed before Run.
func New(o Options) *Keeper {
	return &Keeper{Options: o, seen: make(map[string]look)}
}

// Run makes passes until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	every := min(passEvery, max(k.Rules.KeepDeleted/4, 100*time.Millisecond), max(k.Rules.KeepExecs/4, 100*time.Millisecond))
	tick := time.NewTicker(every)
	defer tick.Stop()
	for { // not at once: a daemon that starts has better to do
		select {
		case <-tick.C:
			k.Pass(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Pass looks at every sandbox once. What fails for one is reported once, tried
// again in the next pass, and holds up no other.
func (k *Keeper) Pass(ctx context.Context) {
	seen := make(map[string]look, len(k.seen))
	for _, sb := range k.Ledger.Sandboxes() {
		before := k.seen[sb.ID]
		if before.lastSequence == sb.LastSequence && before.trouble == "" && (before.due.IsZero() || k.Now().Before(before.due)) {
			seen[sb.ID] = before
			continue
		}
		due, err := k.trim(ctx, sb.ID)
		seen[sb.ID] = look{lastSequence: sb.LastSequence, due: due, trouble: k.report(ctx, sb.ID, before.trouble, err)}
	}
	past, err := k.Ledger.PastIDs(ctx)
	if err != nil {
		if ctx.Err() == nil {
			k.Log.Warn("the deleted sandboxes cannot be listed", "error", err)
		}
		return
	}
	for _, id := range past {
		before, known := k.seen[id]
		if known && before.lastSequence == 0 && before.trouble == "" && k.Now().Before(before.due) {
			seen[id] = before
			continue
		}
		due, err := k.drop(ctx, id)
		if trouble := k.report(ctx, id, before.trouble, err); trouble != "" || !due.IsZero() {
			seen[id] = look{due: due, trouble: trouble}
		}
	}
	k.seen = seen
}

// report logs a failure that is not the same as before.
func (k *Keeper) report(ctx context.Context, sandboxID, before string, err error) string {
	if err == nil || ctx.Err() != nil {
		return ""
	}
	if err.Error() != before {
		k.Log.Warn("what is old enough to be forgotten cannot be removed; it is tried again", "sandbox_id", sandboxID, "error", err)
	}
	return err.Error()
}

// trim forgets what is too old or too much in a living sandbox and says when
// there will be more.
func (k *Keeper) trim(ctx context.Context, id string) (due time.Time, err error) {
	history, recorded, err := k.Ledger.History(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	trim := history.Trim(k.Rules, func(execID string) bool { return recorded[execID] }, k.Now())
	err = k.forget(ctx, id, trim.Parts)
	if n := len(trim.Parts); n > 0 && err == nil {
		k.Log.Debug("old execs and events were forgotten", "sandbox_id", id, "count", n)
	}
	return trim.Due, err
}

// removeLogs removes those of each exec and returns what can be forgotten then:
// an exec whose logs stay keeps its record.
func (k *Keeper) removeLogs(ctx context.Context, sandboxID string, parts []machine.TrimPart) (gone []machine.TrimPart, err error) {
	for _, part := range parts {
		if part.ExecID != "" {
			if failed := k.Logs.RemoveExec(ctx, sandboxID, part.ExecID); failed != nil {
				err = errors.Join(err, fmt.Errorf("logs of exec %s: %w", part.ExecID, failed))
				continue
			}
		}
		gone = append(gone, part)
	}
	return gone, err
}

// forget removes parts page by page, logs first.
func (k *Keeper) forget(ctx context.Context, id string, parts []machine.TrimPart) error {
	var failed error
	for len(parts) > 0 && ctx.Err() == nil {
		n := min(page, len(parts))
		gone, err := k.removeLogs(ctx, id, parts[:n])
		failed = errors.Join(failed, err)
		parts = parts[n:]
		if err := k.Ledger.Forget(ctx, id, gone); err != nil {
			return errors.Join(failed, err)
		}
	}
	return errors.Join(failed, ctx.Err())
}

// drop forgets a deleted sandbox whose time is up, and says when else it will be.
// The due time is zero once it is gone, or if it is nobody's to forget.
func (k *Keeper) drop(ctx context.Context, id string) (due time.Time, err error) {
	at, deleted, err := k.Ledger.DeletedAt(ctx, id)
	if err != nil || !deleted {
		return time.Time{}, err
	}
	if due := at.Add(k.Rules.KeepDeleted); k.Now().Before(due) {
		return due, nil
	}
	if err := k.Logs.RemoveSandbox(ctx, id); err != nil {
		return time.Time{}, err
	}
	history, _, err := k.Ledger.History(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	// Most of it in pages, so that the transaction of the rest is short.
	if err := k.forget(ctx, id, history.All()); err != nil {
		return time.Time{}, err
	}
	if err := k.Ledger.Drop(ctx, id); err != nil {
		return time.Time{}, err
	}
	k.Log.Info("a deleted sandbox was forgotten", "sandbox_id", id, "deleted_at", at)
	return time.Time{}, nil
}
