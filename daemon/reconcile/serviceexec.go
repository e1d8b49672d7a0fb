package reconcile

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
)

// ExecInService runs a command in the container of a running service until it ends, and
// returns its exit code. The caller bounds it with ctx.
func (l *Loop) ExecInService(ctx context.Context, sb ledger.Sandbox, service string, command runtime.ContainerCommand, streams runtime.ContainerStreams) (exitCode int, err error) {
	c, err := l.findService(ctx, sb, service)
	if err != nil {
		return 0, err
	}
	exitCode, err = l.engine.ExecIn(ctx, c.ID, command, streams)
	if errdefs.IsConflict(err) {
		return 0, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_INVALID_STATE,
			"Service %s of sandbox %s does not run, so no command can run in it; \"agbox inspect\" says why.", service, sb.Called()).
			With("sandbox_id", sb.ID).With("service", service)
	}
	return exitCode, err
}
