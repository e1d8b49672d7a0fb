package retention

import (
	"context"
	"errors"
	"time"

	"github.com/agbox/agbox/daemon/checkpoints"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
)

// Files implements Logs for the files of an install.
type Files struct{ Paths paths.Install }

// removeWithin bounds a removal: a container may have left a huge tree, or may still
// be writing.
const removeWithin = time.Minute

// RemoveExec removes the log files of one exec.
func (f Files) RemoveExec(ctx context.Context, sandboxID, execID string) error {
	dir, err := logs.OpenDir(f.Paths.SandboxLogs(sandboxID))
	if errors.Is(err, logs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return dir.Remove(ctx, execID)
}

// mostSlimmed bounds the execs that SlimSandbox looks at. A container can make any number of files.
const mostSlimmed = 1 << 16

// SlimSandbox removes the files of the execs of a deleted sandbox but those with output, and
// but those of execs that keep names.
func (f Files) SlimSandbox(ctx context.Context, sandboxID string, keep func(execID string) bool) error {
	dir, err := logs.OpenDir(f.Paths.SandboxLogs(sandboxID))
	if errors.Is(err, logs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	ids, _, err := dir.ExecIDs(ctx, mostSlimmed)
	for _, id := range ids {
		if !keep(id) {
			err = errors.Join(err, dir.Slim(ctx, id))
		}
	}
	return err
}

// RemoveSandbox removes the log directory of a sandbox with everything in it.
func (f Files) RemoveSandbox(ctx context.Context, sandboxID string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return logs.RemoveAll(ctx, f.Paths.Logs(), sandboxID)
}

// RemoveAgent removes the checkpoints of an agent.
func (f Files) RemoveAgent(agentID string) error { return checkpoints.New(f.Paths).Remove(agentID) }
