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

// RemoveSandbox removes the log directory of a sandbox with everything in it.
func (f Files) RemoveSandbox(ctx context.Context, sandboxID string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return logs.RemoveAll(ctx, f.Paths.Logs(), sandboxID)
}

// RemoveAgent removes the checkpoints of an agent.
func (f Files) RemoveAgent(agentID string) error { return checkpoints.New(f.Paths).Remove(agentID) }
