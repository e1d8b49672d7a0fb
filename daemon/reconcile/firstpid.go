package reconcile

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/runtime"
)

// FirstPID asks the engine for the pid of the first process in the primary of a sandbox,
// which must run.
func (l *Loop) FirstPID(ctx context.Context, sandboxID string) (int, error) {
	sb, living := l.ledger.Sandbox(sandboxID)
	if !living {
		return 0, fmt.Errorf("there is no sandbox %s: %w", sandboxID, errdefs.ErrNotFound)
	}
	var c runtime.Container
	err := l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
		c, err = l.engine.InspectContainer(ctx, runtime.PrimaryName(sandboxID))
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case c.InstallID != l.installID || c.Nonce != sb.Nonce:
		return 0, fmt.Errorf("the container %s belongs to somebody else: %w", c.Name, errdefs.ErrFailedPrecondition)
	case c.PID <= 0:
		return 0, fmt.Errorf("the container %s does not run: %w", c.Name, errdefs.ErrUnavailable)
	}
	return c.PID, nil
}
