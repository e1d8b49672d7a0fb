package reconcile

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/runtime"
)

// FirstPID asks the engine for the pid of the first process in the primary of a sandbox,
// which must run.
func (l *Loop) FirstPID(ctx context.Context, sandboxID string) (int, error) {
	sb, living := l.ledger.Sandbox(sandboxID)
	if !living {
		return 0, fmt.Errorf("there is no sandbox %s: %w", sandboxID, errdefs.ErrNotFound)
	}
	c, err := l.primaryOf(ctx, sb)
	switch {
	case err != nil:
		return 0, err
	case c.PID <= 0:
		return 0, fmt.Errorf("the container %s does not run: %w", c.Name, errdefs.ErrUnavailable)
	}
	return c.PID, nil
}

// primaryOf inspects the primary of a sandbox. It looks for our name first, which is one
// call, and then for our labels: somebody may have renamed the container.
func (l *Loop) primaryOf(ctx context.Context, sb ledger.Sandbox) (c runtime.Container, err error) {
	inspect := func(id string) error {
		return l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
			c, err = l.engine.InspectContainer(ctx, id)
			return err
		})
	}
	err = inspect(runtime.PrimaryName(sb.ID))
	if err == nil && c.InstallID == l.installID && c.Nonce == sb.Nonce {
		return c, nil
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return c, err
	}
	inv, err := l.sandboxObjects(ctx, sb)
	if err != nil {
		return c, err
	}
	for _, found := range inv.Containers {
		if found.Role == runtime.RolePrimary {
			err = inspect(found.ID)
			return c, err
		}
	}
	return c, fmt.Errorf("sandbox %s has no primary container: %w", sb.ID, errdefs.ErrNotFound)
}
