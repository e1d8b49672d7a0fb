package retention

import (
	"context"
	"errors"
	"time"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
)

// Files are the logs of an install on disk.
type Files struct{ Paths paths.Install }

// removeWithin bounds a removal: a container may have left a huge tree behind,
// or still write.
const removeWithin = time.Minute

// RemoveExec removes the files of one exec.
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

// RemoveSandbox removes the folder of a sandbox with everything in it.
func (f Files) RemoveSandbox(ctx context.Context, sandboxID string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return logs.RemoveAll(ctx, f.Paths.Logs(), sandboxID)
}
