package reconcile

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// look fills the observation from the newest full look if that is new enough for this
// round. Otherwise it looks at this sandbox alone.
func (l *Loop) look(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, o *machine.Observation) error {
	l.awaitFirstLook(ctx)
	inv, fresh := l.shared(sb.ID, w.since)
	if !fresh {
		var err error
		if inv, err = l.sandboxObjects(ctx, sb); err != nil {
			return err
		}
	}
	inv, err := l.confirmed(ctx, sb, ours(inv, sb.Nonce))
	if err != nil {
		return err
	}
	if err := l.observe(ctx, sb.ID, inv, o); err != nil {
		w.since = l.now() // a full look that began before this may have seen less than what was inspected
		return err
	}
	o.Looked, o.Unfenced, w.ran = true, l.unfenced(sb, inv.Networks), sb.Execs
	w.network = networkTrouble(inv, o.Primary)
	if sb.State == machine.Pending && o.Primary != nil && o.Primary.State == runtime.StateRunning && w.startedAt.IsZero() {
		w.startedAt = l.now() // started by an earlier daemon: its supervisor gets its time from now on
	}
	now := l.now()
	w.since = now // a full look that began before this may have seen less
	l.mu.Lock()
	w.looked, w.seen = now, digestOf(inv)
	l.mu.Unlock()
	return nil
}

// confirmed adds the primary of a sandbox in use to a list without it, if the engine has it nevertheless. What runs
// in it would be recorded as lost, so a list alone is not believed.
func (l *Loop) confirmed(ctx context.Context, sb ledger.Sandbox, inv runtime.Inventory) (runtime.Inventory, error) {
	listed := slices.ContainsFunc(inv.Containers, func(c runtime.Container) bool { return c.Role == runtime.RolePrimary })
	if listed || sb.State != machine.Ready && len(sb.Execs) == 0 {
		return inv, nil
	}
	c, err := ask(ctx, l, lookTimeout, l.engine.InspectContainer, runtime.PrimaryName(sb.ID))
	switch {
	case err == nil && c.Role == runtime.RolePrimary && c.InstallID == l.opts.InstallID && c.SandboxID == sb.ID && c.Nonce == sb.Nonce:
		l.log.Warn("a list of the engine lacks a container that it has", "sandbox_id", sb.ID, "container_id", c.ID, "state", c.State)
		inv.Containers = append(inv.Containers, c)
	case err != nil && !errdefs.IsNotFound(err):
		return inv, err
	}
	return inv, nil
}

// firstLookWait is how long a sandbox waits for the first full look of a daemon. A look at each of hundreds costs
// more, and an engine that takes longer may answer about one sandbox.
const firstLookWait = time.Second

func (l *Loop) awaitFirstLook(ctx context.Context) {
	select {
	case <-l.firstLook:
		return
	default:
	}
	l.mu.Lock()
	running := l.ctx != nil
	l.mu.Unlock()
	if !running { // nobody looks
		return
	}
	select {
	case <-l.firstLook:
	case <-time.After(firstLookWait):
	case <-ctx.Done():
	}
}

// findStray looks for the first process of a primary that the engine does not have, or says
// has ended: an engine that lost its data, or one that was adopted in place of another, does
// not know of processes that run on. Their commands are not lost.
func (l *Loop) findStray(sandboxID string, o *machine.Observation) {
	o.Stray = (o.Primary == nil || ended(*o.Primary)) && l.links.Lives(sandboxID)
	if !o.Stray {
		return
	}
	var c runtime.Container
	if o.Primary != nil {
		c = *o.Primary
	}
	c.State = runtime.StateRunning
	o.Primary = &c
}

// hasSpares reports whether there is something that removeSpares removes.
func hasSpares(inv runtime.Inventory) bool {
	return len(spareNetworks(inv)) > 0 || len(spareContainers(inv)) > 0
}

// observe copies an inventory into the observation. It inspects containers that do not
// run, because a list does not say why, and those for which an event has just arrived.
func (l *Loop) observe(ctx context.Context, sandboxID string, inv runtime.Inventory, o *machine.Observation) error {
	o.Leftovers, o.Primary, o.EngineRestarted = !inv.Empty() || l.hasGuestFolder(sandboxID), nil, false
	o.Services, o.Spares = make(map[string]machine.ServiceSeen), hasSpares(inv)
	for _, c := range inv.Containers {
		doubted := l.doubted(c.ID)
		if doubted || ended(c) || c.Role == runtime.RolePrimary && c.State != runtime.StateRunning {
			closer, err := ask(ctx, l, lookTimeout, l.engine.InspectContainer, c.ID)
			if err == nil {
				c = closer
			}
			if errdefs.IsNotFound(err) && c.Role != runtime.RolePrimary {
				continue
			}
			if err != nil {
				if doubted && !errdefs.IsNotFound(err) { // else its events may be over, and nothing would end the doubt
					l.doubt(c.ID) // the next list may be as old as this one
				}
				return err
			}
		}
		switch c.Role {
		case runtime.RolePrimary:
			o.Primary, o.EngineRestarted = &c, l.endedWithEngine(&c)
		case runtime.RoleService:
			o.Services[c.Service] = machine.ServiceSeen{Container: &c}
		}
	}
	l.findStray(sandboxID, o)
	return nil
}

// hasGuestFolder reports whether the supervisor's folder exists. It can exist without any
// container, before the first and after the last call to the engine.
func (l *Loop) hasGuestFolder(sandboxID string) bool {
	_, err := os.Lstat(l.paths.Guest(sandboxID))
	return err == nil
}

func ended(c runtime.Container) bool {
	return c.State == runtime.StateExited || c.State == runtime.StateDead
}

// spareNetworks returns the networks of a sandbox that none of its containers was made
// for. It returns none if the sandbox has no container that was made for one of them.
func spareNetworks(inv runtime.Inventory) []runtime.Network {
	spare := slices.DeleteFunc(slices.Clone(inv.Networks), func(n runtime.Network) bool {
		return slices.ContainsFunc(inv.Containers, func(c runtime.Container) bool { return c.NetworkID == n.ID })
	})
	if len(spare) == len(inv.Networks) {
		return nil
	}
	return spare
}

// spareContainers are those that were made for one step: image readers and reclaimers. A
// killed daemon, or an engine that executes a request late, leaves one behind.
func spareContainers(inv runtime.Inventory) []runtime.Container {
	return slices.DeleteFunc(slices.Clone(inv.Containers), func(c runtime.Container) bool {
		return c.Role != runtime.RoleImageReader && c.Role != runtime.RoleReclaimer
	})
}
