package reconcile

import (
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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
	inv, err := l.engine.SandboxInventory(look, l.opts.InstallID, sb.ID)
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
	c, err = ask(ctx, l, lookTimeout, l.engine.InspectContainer, runtime.PrimaryName(sb.ID))
	if err == nil && c.InstallID == l.opts.InstallID && c.Nonce == sb.Nonce {
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
			return ask(ctx, l, lookTimeout, l.engine.InspectContainer, found.ID)
		}
	}
	return c, fmt.Errorf("sandbox %s has no primary container: %w", sb.ID, errdefs.ErrNotFound)
}

// Archive returns a file or folder of a sandbox's primary, which need not run, as a tar
// stream. It starts nothing. Its error is an errdefs.ErrNotFound if there is no such file.
func (l *Loop) Archive(ctx context.Context, sb ledger.Sandbox, path string) (io.ReadCloser, error) {
	primary, err := l.archived(ctx, sb)
	if err != nil {
		return nil, err
	}
	stream, err := l.engine.Archive(ctx, primary.ID, path)
	if errdefs.IsNotFound(err) {
		// Or there is no container, or no file of it, any more: all of the workspace would count as
		// removed, and be removed from the folder that it was copied from.
		if _, gone := l.archived(ctx, sb); gone != nil {
			return nil, gone
		}
	}
	return stream, err
}

// archived returns the primary of a sandbox if nobody removes it.
func (l *Loop) archived(ctx context.Context, sb ledger.Sandbox) (runtime.Container, error) {
	primary, err := l.primaryOf(ctx, sb)
	now, living := l.ledger.Sandbox(sb.ID)
	removed := !living || now.Want == machine.WantDeleted || err == nil && (primary.State == runtime.StateRemoving || primary.State == runtime.StateDead)
	if removed || errdefs.IsNotFound(err) {
		return primary, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_PRIMARY_MISSING,
			"Sandbox %s has no container any more, and its files went with it: what `agbox diff` showed before cannot be shown again.", sb.ID)
	}
	return primary, err
}

// Uncovered returns what in the writable mounts of a sandbox's primary would be covered if
// it were made now, but has no cover: absolute paths on the host. notSearched are mounts
// that are too large to find everything.
func (l *Loop) Uncovered(ctx context.Context, sb ledger.Sandbox) (found, notSearched []string, err error) {
	if sb.Spec.GetSecurity().GetWritableConfig() || !mountsHost(sb.Spec) {
		return nil, nil, nil
	}
	primary, err := l.primaryOf(ctx, sb)
	if errdefs.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	mounts, err := l.mountsOf(ctx, primary.ID)
	if err != nil {
		return nil, nil, err
	}
	covered := make(map[string]bool)
	for _, m := range mounts {
		if m.ReadOnly && covering(m, mounts) {
			covered[m.Source] = true
		}
	}
	for _, m := range mounts {
		if m.ReadOnly || covering(m, mounts) || cache(sb.Spec, m) {
			continue
		}
		held, err := hostfiles.Again(m.Source)
		if err != nil {
			continue // it is gone, or it is not what is mounted
		}
		fresh, complete, err := l.host.Uncovered(held, covered)
		held.Close()
		if err != nil {
			return nil, nil, err
		}
		if !complete {
			notSearched = append(notSearched, m.Source)
		}
		for _, at := range fresh {
			if !shadowed(sb.Spec, mounts, m, at) {
				found = append(found, at)
			}
		}
	}
	return found, notSearched, nil
}

// cache reports whether a mount is the cache of a tool.
func cache(s *agboxv1.CreateSpec, m runtime.Mount) bool {
	return slices.ContainsFunc(s.GetToolProjections(), func(p *agboxv1.ToolProjection) bool {
		return p.GetKind() == agboxv1.ProjectionKind_PROJECTION_KIND_CACHE && p.GetSource() == m.Source
	})
}

// shadowed reports whether a path of the host below a mount is behind something else that
// the spec mounts in it, where the sandbox cannot reach it.
func shadowed(s *agboxv1.CreateSpec, mounts []runtime.Mount, m runtime.Mount, at string) bool {
	rel, err := filepath.Rel(m.Source, at)
	if err != nil {
		return false
	}
	target := path.Join(m.Target, rel)
	var others []string
	for _, other := range mounts {
		if !covering(other, mounts) {
			others = append(others, other.Target)
		}
	}
	for _, v := range s.GetVolumes() {
		others = append(others, v.GetTarget())
	}
	for _, t := range s.GetTmpfs() {
		others = append(others, t.GetTarget())
	}
	return slices.ContainsFunc(others, func(other string) bool {
		other = path.Clean(other)
		return strings.HasPrefix(other, path.Clean(m.Target)+"/") && strings.HasPrefix(target+"/", other+"/")
	})
}

// Containers returns the sandbox's containers: their current state if the engine answers
// soon, otherwise the last known one. It does not query an engine that is known not to
// answer, so reads stay fast. Each container is one call: a list of all objects of a sandbox is
// three, which each look at all objects of the engine.
func (l *Loop) Containers(ctx context.Context, sb ledger.Sandbox) []runtime.Container {
	known := l.remembered(sb)
	if l.Health().Err != nil {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var shown []runtime.Container
	services := []string{""} // the primary
	for _, s := range sb.Spec.GetServices() {
		services = append(services, s.GetName())
	}
	for _, service := range services {
		c, err := l.inspectOne(ctx, sb, service, known)
		switch {
		case err == nil && c.InstallID == l.opts.InstallID && c.Nonce == sb.Nonce:
			shown = append(shown, c)
		case err != nil && !errdefs.IsNotFound(err):
			return known
		}
	}
	return shown
}

// inspectOne inspects the container of a service that was seen last, also if somebody has
// renamed it, else the one that has its name.
func (l *Loop) inspectOne(ctx context.Context, sb ledger.Sandbox, service string, known []runtime.Container) (runtime.Container, error) {
	for _, k := range known {
		if k.Service != service {
			continue
		}
		if c, err := l.engine.InspectContainer(ctx, k.ID); !errdefs.IsNotFound(err) {
			return c, err
		}
	}
	if service == "" {
		return l.engine.InspectContainer(ctx, runtime.PrimaryName(sb.ID))
	}
	return l.engine.InspectContainer(ctx, runtime.ServiceName(sb.ID, service))
}
