package retention

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// clearWithin bounds a removal, in case the container was started behind the daemon's back
// and adds files meanwhile.
const clearWithin = time.Minute

// Tidy is Clear for a sandbox that has more in its folders than it may. Then the largest
// logs go too, until it has no more than that. Its container must not run. A sandbox that
// still has too much gets HOST_FOLDERS_FULL (errdefs.ErrFailedPrecondition).
func (k *Room) Tidy(ctx context.Context, sandboxID string) error {
	defer k.forget(sandboxID)
	use, err := k.Use(ctx, sandboxID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was made for it yet, or somebody removed it
	}
	if err != nil || !use.Over() {
		return err
	}
	if err := k.Clear(ctx, sandboxID); err != nil {
		return k.full(sandboxID, use, err)
	}
	if use, err = k.Use(ctx, sandboxID); err != nil || !use.Over() {
		return err
	}
	if use.mostlySaved() {
		return k.full(sandboxID, use, nil) // its logs are not to blame
	}
	if use.MaxBytes > 0 && !use.Hidden {
		err = withinLogs(k.paths.SandboxLogs(sandboxID), func(dir *logs.Dir) error {
			defer k.ledger.RecountJournals(sandboxID)
			removed, err := dir.Shrink(ctx, use.MaxBytes-min(use.Saved, use.MaxBytes))
			k.log.Warn("removed the largest logs of a sandbox, which were longer than agbox writes them", "sandbox_id", sandboxID, "count", removed)
			return err
		})
	}
	if err == nil {
		use, err = k.Use(ctx, sandboxID)
	}
	if err != nil || use.Over() {
		return k.full(sandboxID, use, err)
	}
	return nil
}

// Clear removes what agbox has not put into the folders of a sandbox: everything but the
// files of recorded execs and the socket. Its container must not run.
func (k *Room) Clear(ctx context.Context, sandboxID string) error {
	ctx, cancel := context.WithTimeout(ctx, clearWithin)
	defer cancel()
	recorded, err := k.ledger.RecordedExecs(ctx, sandboxID)
	if err != nil {
		return err
	}
	return errors.Join(
		withinLogs(k.paths.SandboxLogs(sandboxID), func(dir *logs.Dir) error {
			return dir.RemoveOthers(ctx, func(name string) bool {
				id, ok := logs.ExecOf(name)
				return ok && recorded[id]
			})
		}),
		withinLogs(k.paths.GuestLink(sandboxID), func(dir *logs.Dir) error {
			return dir.RemoveOthers(ctx, func(name string) bool { return name == paths.LinkSocket })
		}))
}

// RemoveLogs removes the output of all recorded execs of a sandbox that is deleted.
func (k *Room) RemoveLogs(ctx context.Context, sandboxID string) error {
	ctx, cancel := context.WithTimeout(ctx, clearWithin)
	defer cancel()
	recorded, err := k.ledger.RecordedExecs(ctx, sandboxID)
	if err != nil {
		return err
	}
	return withinLogs(k.paths.SandboxLogs(sandboxID), func(dir *logs.Dir) error {
		var failed error
		for id := range recorded {
			failed = errors.Join(failed, dir.RemoveOutput(ctx, id))
		}
		return failed
	})
}

// withinLogs calls do with a directory, unless there is none.
func withinLogs(path string, do func(*logs.Dir) error) error {
	dir, err := logs.OpenDir(path)
	if errors.Is(err, logs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return do(dir)
}

func (k *Room) full(sandboxID string, use Use, cause error) error {
	if use.mostlySaved() {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_FOLDERS_FULL,
			"The agents of sandbox %s have %d bytes in checkpoints, and with its folders it may have %d: remove agents that have ended with \"agbox agent rm\".",
			sandboxID, use.Saved, use.MaxBytes).With("sandbox_id", sandboxID).Because(cause)
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_FOLDERS_FULL,
		"Sandbox %s has put more into %s than it may, and the daemon cannot remove all of it: remove it there, as root if need be.",
		sandboxID, k.paths.SandboxLogs(sandboxID)).With("sandbox_id", sandboxID).Because(cause)
}

// Files implements Logs for the files of an install.
type Files struct{ Paths paths.Install }

// removeWithin bounds a removal: a container may have left a huge tree, or may still
// be writing.
const removeWithin = time.Minute

// RemoveExec removes the log files of one exec.
func (f Files) RemoveExec(ctx context.Context, sandboxID, execID string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return withinLogs(f.Paths.SandboxLogs(sandboxID), func(dir *logs.Dir) error { return dir.Remove(ctx, execID) })
}

// mostSlimmed bounds the execs that SlimSandbox looks at. A container can make any number of files.
const mostSlimmed = 1 << 16

// SlimSandbox removes the files of the execs of a deleted sandbox but those with output, and
// but those of execs that keep names.
func (f Files) SlimSandbox(ctx context.Context, sandboxID string, keep func(execID string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return withinLogs(f.Paths.SandboxLogs(sandboxID), func(dir *logs.Dir) error {
		ids, _, err := dir.ExecIDs(ctx, mostSlimmed)
		for _, id := range ids {
			if !keep(id) {
				err = errors.Join(err, dir.Slim(ctx, id))
			}
		}
		return err
	})
}

// RemoveSandbox removes the log directory of a sandbox with everything in it.
func (f Files) RemoveSandbox(ctx context.Context, sandboxID string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return logs.RemoveAll(ctx, f.Paths.Logs(), sandboxID)
}

// RemoveAgent removes the checkpoints of an agent.
func (f Files) RemoveAgent(agentID string) error { return NewCheckpoints(f.Paths).Remove(agentID) }
