package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// prepare makes network, images, volumes and containers of the primary and of the named
// services. Each waits only for what it needs. A changed want cancels only pulls, which
// have their own context. prepare waits for calls that make something, so that later
// looks see the result. A permanent error cancels all pulls, because their images are no
// longer needed.
func (l *Loop) prepare(ctx, pull context.Context, w *sandboxWork, sb ledger.Sandbox, services []string, o *machine.Observation) error {
	if err := l.sameEngine(ctx); err != nil { // before a pull or a build
		return err
	}
	network := new(sandboxNetwork)
	group := new(errgroup.Group)
	pull, cancelPull := context.WithCancelCause(pull)
	defer cancelPull(nil)
	do := func(deed func() error) {
		group.Go(func() error {
			err := deed()
			if err != nil && !retryable(err) {
				cancelPull(err)
			}
			return err
		})
	}
	do(func() error {
		made, err := l.network(ctx, sb, network)
		if err == nil {
			l.raiseEarly(sb, made)
		}
		return err
	})
	if o.Primary == nil {
		do(func() error {
			id, err := l.makePrimary(ctx, pull, sb, network)
			if err == nil {
				o.Primary = &runtime.Container{ID: id, State: runtime.StateCreated}
			}
			return err
		})
	}
	for _, name := range services {
		do(func() error { return l.makeService(ctx, pull, sb, serviceSpec(sb, name), network) })
	}
	if err := group.Wait(); err != nil {
		return cmp.Or(context.Cause(pull), err)
	}
	o.Looked, o.Leftovers = true, true
	o.Unfenced = l.unfenced(sb, []runtime.Network{network.made})
	if len(services) > 0 {
		o.Looked, w.since = false, l.now() // an existing container may be in a later state
	}
	return nil
}

func (l *Loop) makePrimary(ctx, pull context.Context, sb ledger.Sandbox, n *sandboxNetwork) (id string, err error) {
	pull, cancel := context.WithTimeout(pull, pullTimeout)
	defer cancel()
	l.imagesInUse.RLock()
	defer l.imagesInUse.RUnlock()
	image, err := l.image(ctx, pull, sb, sb.Spec, "")
	if err != nil {
		return "", err
	}
	home, err := l.home(ctx, sb, image, n)
	if err != nil {
		return "", err
	}
	if err := l.writeGuestFiles(ctx, sb, image, home); err != nil {
		return "", err
	}
	if _, err := l.restoreSupervisor(l.opts.Supervisor); err != nil {
		return "", err
	}
	network, err := l.network(ctx, sb, n)
	if err != nil {
		return "", err
	}
	return l.makeContainer(ctx, sb, sb.Spec, func(revealed ledger.Sandbox) (runtime.ContainerSpec, error) {
		return l.primarySpec(revealed, image, network, home)
	})
}

func (l *Loop) makeService(ctx, pull context.Context, sb ledger.Sandbox, spec *agboxv1.ServiceSpec, n *sandboxNetwork) error {
	pull, cancel := context.WithTimeout(pull, pullTimeout)
	defer cancel()
	l.imagesInUse.RLock()
	defer l.imagesInUse.RUnlock()
	image, err := l.image(ctx, pull, sb, spec, spec.GetName())
	if err != nil {
		return aboutService(spec.GetName(), err)
	}
	network, err := l.network(ctx, sb, n)
	if err != nil {
		return err
	}
	_, err = l.makeContainer(ctx, sb, spec, func(revealed ledger.Sandbox) (runtime.ContainerSpec, error) {
		return l.serviceContainer(revealed, serviceSpec(revealed, spec.GetName()), image, network)
	})
	return aboutService(spec.GetName(), err)
}

// makeContainer makes the volumes that a container mounts, then the container.
func (l *Loop) makeContainer(ctx context.Context, sb ledger.Sandbox, asked contained, describe func(revealed ledger.Sandbox) (runtime.ContainerSpec, error)) (id string, err error) {
	revealed, err := l.ledger.Reveal(ctx, sb)
	if err != nil {
		return "", err
	}
	spec, err := describe(revealed)
	if err != nil {
		return "", err
	}
	if err := l.limitMemory(ctx, &spec, asked.GetMemoryLimit(), sb.Spec.GetDerived() != nil); err != nil {
		return "", err
	}
	for _, v := range asked.GetVolumes() {
		err := l.verb(ctx, verbTimeout, func(ctx context.Context) error {
			return l.engine.EnsureVolume(ctx, l.volumeSpec(sb, v.GetName()))
		})
		if err != nil {
			return "", err
		}
	}
	return ask(ctx, l, verbTimeout, l.engine.EnsureContainer, spec)
}

// aboutService adds the service's name to an error.
func aboutService(name string, err error) error {
	if err == nil {
		return nil
	}
	if f := fault.Of(err); f != nil {
		return fault.New(f.Class, f.Reason, "Service %s: %s", name, f.Message).With("service", name).Because(err)
	}
	return fmt.Errorf("service %s: %w", name, err)
}

// makeServices starts making services of a READY sandbox, each independently.
func (l *Loop) makeServices(w *sandboxWork, sb ledger.Sandbox, names []string) {
	network := new(sandboxNetwork)
	for _, name := range names {
		l.mu.Lock()
		s, life := w.service(name), l.ctx
		if s.cancel != nil {
			l.mu.Unlock()
			continue
		}
		pull, cancel := context.WithCancel(life)
		s.cancel, s.made = cancel, make(chan struct{})
		l.mu.Unlock()
		l.wg.Go(func() {
			err := l.makeService(life, pull, sb, serviceSpec(sb, name), network)
			given := pull.Err() != nil
			cancel()
			if err != nil {
				l.log.Warn("a service could not be made", "sandbox_id", sb.ID, "service", name, "error", err, "cause", fault.Cause(err))
			}
			l.mu.Lock()
			if err != nil && !given {
				s.failure = serviceFailure(name, err)
			}
			s.cancel = nil
			close(s.made)
			l.mu.Unlock()
			l.Enqueue(sb.ID)
		})
	}
}

// halt cancels making services in the background and waits until that has ended.
func (l *Loop) halt(w *sandboxWork) {
	l.mu.Lock()
	var busy []chan struct{}
	for _, s := range w.services {
		if s.cancel != nil {
			s.cancel()
			busy = append(busy, s.made)
		}
	}
	l.mu.Unlock()
	for _, made := range busy {
		<-made
	}
}

func serviceFailure(name string, err error) *machine.ServiceFailure {
	f := fault.Of(err)
	if f == nil {
		return &machine.ServiceFailure{
			Reason:  agboxv1.ErrorReason_SERVICE_START_FAILED,
			Message: fmt.Sprintf("Service %s could not be started: %v", name, err),
		}
	}
	reason := f.Reason
	if reason == agboxv1.ErrorReason_ENGINE_FAILED || reason == agboxv1.ErrorReason_INTERNAL_ERROR {
		reason = agboxv1.ErrorReason_SERVICE_START_FAILED
	}
	return &machine.ServiceFailure{Reason: reason, Message: f.Message}
}

// startServices starts services concurrently. A permanent error of a service is stored
// and becomes an event. Other errors are returned for a retry.
func (l *Loop) startServices(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, names []string, o *machine.Observation) error {
	if sb.State == machine.Pending {
		l.announce(ctx, sb, "services", strings.Join(names, ", "))
	}
	failed := l.each(names, func(name string) error {
		c := o.Services[name].Container
		err := l.allowed(serviceSpec(sb, name))
		if err == nil && c.State == runtime.StateCreated {
			err = l.copyToService(ctx, sb, serviceSpec(sb, name), c.ID)
		}
		if err == nil {
			err = l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.StartContainer(ctx, c.ID) })
		}
		now := l.now()
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			s := w.service(name)
			s.started, s.startedAt = sb.Services[name].Start, now
		case errdefs.IsNotFound(err): // removed just now: the next look shows it
		case retryable(err) || ctx.Err() != nil:
			return err
		default:
			w.service(name).failure = serviceFailure(name, aboutService(name, err))
		}
		return nil
	})
	o.Looked, w.since = false, l.now()
	return failed
}

func (l *Loop) stopServices(ctx context.Context, w *sandboxWork, names []string, o *machine.Observation) error {
	failed := l.each(names, func(name string) error {
		return l.stopContainer(ctx, o.Services[name].Container.ID, stopGrace)
	})
	o.Looked, w.since = false, l.now()
	return failed
}

// clearFailure clears the error of a service once an event has reported it.
func (l *Loop) clearFailure(w *sandboxWork, ev *agboxv1.SandboxEvent) {
	if ev.GetEventType() == agboxv1.EventType_SANDBOX_SERVICE_FAILED {
		l.mu.Lock()
		w.service(ev.GetService().GetName()).failure = nil
		l.mu.Unlock()
	}
}

// copyToService copies what the spec names into the container of a service that never ran.
// After a crash it is repeated, and replaces what it copied before.
func (l *Loop) copyToService(ctx context.Context, sb ledger.Sandbox, spec *agboxv1.ServiceSpec, id string) error {
	for i, c := range spec.GetCopies() {
		one := hostfiles.Copy{
			Field:  "services." + spec.GetName() + ".copies[" + strconv.Itoa(i) + "]",
			Source: c.GetSource(), Target: c.GetTarget(), Excludes: c.GetExcludePatterns(), Owner: c.GetOwner(),
			Force: sb.Spec.GetSecurity().GetAllowDangerousMounts(),
		}
		if err := l.copyOne(ctx, sb, one, id); err != nil {
			return one.Failed(err)
		}
	}
	return nil
}

func (l *Loop) copyOne(ctx context.Context, sb ledger.Sandbox, one hostfiles.Copy, id string) error {
	tree, err := l.hostOf(sb).Open(one)
	if err != nil {
		return err
	}
	defer tree.Close()
	owner, err := one.Numbers()
	if err != nil {
		return err
	}
	read, write := io.Pipe()
	packed := make(chan error, 1)
	go func() { // this function waits for packed
		err := tree.Pack(ctx, write, strings.TrimPrefix(path.Clean(one.Target), "/"), owner, nil, nil)
		_ = write.CloseWithError(err) // never fails
		packed <- err
	}()
	err = l.verb(ctx, pullTimeout, func(ctx context.Context) error { return l.engine.CopyTo(ctx, id, read) })
	_ = read.CloseWithError(io.ErrClosedPipe) // the packer may still write
	if failed := <-packed; fault.Of(failed) != nil {
		return failed // what is wrong on the host
	}
	return err
}
