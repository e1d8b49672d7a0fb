package reconcile

import (
	"context"
	"io"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
)

// ServiceLogs writes the output of a service, as far as the engine keeps it. The caller
// bounds it with ctx.
func (l *Loop) ServiceLogs(ctx context.Context, sb ledger.Sandbox, service string, opts runtime.LogOptions, stdout, stderr io.Writer) error {
	c, err := l.findService(ctx, sb, service)
	if err != nil {
		return err
	}
	return l.engine.ContainerLogs(ctx, c.ID, opts, stdout, stderr)
}

// findService returns the container of a service.
func (l *Loop) findService(ctx context.Context, sb ledger.Sandbox, service string) (runtime.Container, error) {
	if serviceSpec(sb, service) == nil {
		return runtime.Container{}, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SERVICE_MISSING,
			"Sandbox %s has no service %q; \"agbox inspect\" shows its services.", sb.Called(), service).With("sandbox_id", sb.ID).With("service", service)
	}
	look, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	inv, err := l.engine.SandboxInventory(look, l.installID, sb.ID)
	if err != nil {
		return runtime.Container{}, err
	}
	for _, c := range ours(inv, sb.Nonce).Containers {
		if c.Role == runtime.RoleService && c.Service == service {
			return c, nil
		}
	}
	return runtime.Container{}, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SERVICE_MISSING,
		"Service %s of sandbox %s has no container; \"agbox inspect\" says why.", service, sb.Called()).
		With("sandbox_id", sb.ID).With("service", service)
}
