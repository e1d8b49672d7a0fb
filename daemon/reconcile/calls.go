package reconcile

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// verb runs one engine call in a slot and with a timeout, if the engine is the install's.
func (l *Loop) verb(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	return l.inSlot(ctx, l.slots, timeout, call)
}

// ask is verb for a call that takes and returns something.
func ask[In, Out any](ctx context.Context, l *Loop, timeout time.Duration, call func(context.Context, In) (Out, error), about In) (out Out, err error) {
	err = l.verb(ctx, timeout, func(ctx context.Context) (err error) {
		out, err = call(ctx, about)
		return err
	})
	return out, err
}

// inSlot waits for a free slot and runs the call in it.
func (l *Loop) inSlot(ctx context.Context, slots chan struct{}, timeout time.Duration, call func(context.Context) error) error {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-slots }()
	if err := l.sameEngine(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// stopContainer stops a container with a grace.
func (l *Loop) stopContainer(ctx context.Context, id string, grace time.Duration) error {
	return l.inSlot(ctx, l.stops, verbTimeout, func(ctx context.Context) error {
		return l.engine.StopContainer(ctx, id, grace)
	})
}

// removeEach removes all objects of a kind concurrently.
func removeEach[T any](ctx context.Context, l *Loop, remove func(context.Context, string) error, all []T, id func(T) string) error {
	ids := make([]string, len(all))
	for i, object := range all {
		ids[i] = id(object)
	}
	return l.each(ids, func(id string) error {
		return l.verb(ctx, verbTimeout, func(ctx context.Context) error { return remove(ctx, id) })
	})
}

// sandboxNetwork is made while images are pulled, and passed to those that wait for it.
type sandboxNetwork struct {
	once sync.Once
	made runtime.Network
	err  error
}

func (l *Loop) network(ctx context.Context, sb ledger.Sandbox, n *sandboxNetwork) (runtime.Network, error) {
	n.once.Do(func() {
		n.made, n.err = ask(ctx, l, verbTimeout, l.engine.EnsureNetwork, l.networkSpec(sb))
	})
	return n.made, n.err
}

// each calls do for all names concurrently and joins the errors.
func (l *Loop) each(names []string, do func(string) error) error {
	failures := make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { failures[i] = do(name) })
	}
	group.Wait()
	return errors.Join(failures...)
}

// sandboxObjects lists what the engine has of a sandbox. A list without a container is
// believed only if the engine is still the install's.
func (l *Loop) sandboxObjects(ctx context.Context, sb ledger.Sandbox) (runtime.Inventory, error) {
	var inv runtime.Inventory
	err := l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
		inv, err = l.engine.SandboxInventory(ctx, l.opts.InstallID, sb.ID)
		return err
	})
	if err != nil {
		return runtime.Inventory{}, err
	}
	inv = ours(inv, sb.Nonce)
	if len(inv.Containers) > 0 {
		return inv, nil
	}
	return inv, l.stillSame(ctx)
}

// Quiesce waits for the running engine verbs and permanently prevents further ones. Only
// the end of Run may follow. It is needed because an engine completes a call whose caller
// is gone, and the next daemon, which looks before that, would repeat it. ctx bounds the
// wait.
func (l *Loop) Quiesce(ctx context.Context) error {
	for _, slots := range []chan struct{}{l.slots, l.stops} {
		for range cap(slots) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

func (l *Loop) identity(sb ledger.Sandbox, role runtime.Role) runtime.Identity {
	return runtime.Identity{InstallID: l.opts.InstallID, SandboxID: sb.ID, Nonce: sb.Nonce, Role: role}
}

func (l *Loop) networkSpec(sb ledger.Sandbox) runtime.NetworkSpec {
	return runtime.NetworkSpec{
		Identity:   l.identity(sb, runtime.RoleNetwork),
		Name:       runtime.NetworkName(sb.ID),
		Internal:   internal(sb),
		Containers: 1 + len(sb.Spec.GetServices()),
	}
}

// internal reports whether the containers of a sandbox reach only each other.
func internal(sb ledger.Sandbox) bool {
	return sb.Spec.GetNetwork() == agboxv1.NetworkMode_NETWORK_MODE_INTERNAL
}

// hostname returns the name with which the sandbox was created if it has one, because shell
// prompts show it. A host name has at most 63 characters (RFC 1123) and no '_' or '.'.
func hostname(sb ledger.Sandbox) string {
	name := sb.Spec.GetName()
	if name == "" {
		name = sb.ID
	}
	name = ids.Sanitize(name)
	return strings.Trim(name[:min(len(name), 63)], "-")
}

// hostMemory returns the memory of the engine's host in bytes; 0 means unknown. It asks
// the engine if no look has succeeded yet.
func (l *Loop) hostMemory(ctx context.Context) (int64, error) {
	if l.opts.MemoryDefault.Percent == 0 {
		return 0, nil
	}
	info, err := l.engineInfo(ctx)
	return info.Memory, err
}

// engineInfo returns what the engine said about itself. It asks only if no look has
// succeeded yet.
func (l *Loop) engineInfo(ctx context.Context) (runtime.EngineInfo, error) {
	l.mu.Lock()
	info := l.health.Info
	l.mu.Unlock()
	if info.Version != "" {
		return info, nil
	}
	err := l.verb(ctx, verbTimeout, func(ctx context.Context) (err error) {
		info, err = l.engine.Info(ctx)
		return err
	})
	return info, err
}
