package reconcile

import (
	"context"
	"fmt"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// Orphaned reports whether an object with this install's label belongs to no sandbox that
// may still need it, and says why in a sentence. The sweep of orphans uses the same rule.
func (l *Loop) Orphaned(ctx context.Context, id runtime.Identity) (why string, orphaned bool) {
	if l.owned(ctx, &orphan{Identity: id}) {
		return "", false
	}
	if sb, living := l.ledger.Sandbox(id.SandboxID); living {
		return fmt.Sprintf("It carries the id of sandbox %s but not its mark: it is of an earlier life, or its labels were copied.", sb.ID), true
	}
	return "It belongs to no sandbox that exists.", true
}

// RemoveOrphanedContainer removes a container if Orphaned is true for it. It checks that
// again right before.
func (l *Loop) RemoveOrphanedContainer(ctx context.Context, c runtime.Container) error {
	if err := l.stillOrphaned(ctx, c.Identity); err != nil {
		return err
	}
	return l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.RemoveContainer(ctx, c.ID) })
}

// RemoveOrphanedNetwork does the same for a network. Its containers must have been
// removed before.
func (l *Loop) RemoveOrphanedNetwork(ctx context.Context, n runtime.Network) error {
	if err := l.stillOrphaned(ctx, n.Identity); err != nil {
		return err
	}
	return l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.RemoveNetwork(ctx, n.ID) })
}

// RemoveOrphanedVolume does the same for a volume.
func (l *Loop) RemoveOrphanedVolume(ctx context.Context, v runtime.Volume) error {
	if err := l.stillOrphaned(ctx, v.Identity); err != nil {
		return err
	}
	return l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.RemoveVolume(ctx, v.Name) })
}

func (l *Loop) stillOrphaned(ctx context.Context, id runtime.Identity) error {
	if _, orphaned := l.Orphaned(ctx, id); !orphaned {
		return fmt.Errorf("it belongs to sandbox %s by now", id.SandboxID)
	}
	return nil
}

// Foresee returns the step that the loop would execute for a sandbox with the inventory
// inv, without executing it. It leaves out a sandbox that its worker is changing.
func (l *Loop) Foresee(ctx context.Context, sb ledger.Sandbox, inv runtime.Inventory) (machine.Step, error) {
	inv = ours(inv, sb.Nonce)
	o := machine.Observation{Looked: true, Connected: l.links.Connected(sb.ID), ConnectFailed: true}
	if err := l.observe(ctx, sb.ID, inv, &o); err != nil {
		return machine.Step{}, err
	}
	o.Unfenced = l.unfenced(sb, inv.Networks)
	l.mu.Lock()
	w := l.sandboxes[sb.ID]
	l.mu.Unlock()
	if w != nil {
		l.recall(w, &o)
	}
	if o.Primary == nil || o.Primary.State != runtime.StateRunning && o.Primary.State != runtime.StatePaused {
		sb.Execs = nil // they end on the way; the decision does not depend on them
	}
	return machine.Next(sb.Record, o, l.rules(sb), l.now()), nil
}

// NameOf is the inverse of hostname: it returns the name of the sandbox whose primary has
// the host name, or "" if the host name was made from the id. Characters that a host name
// cannot have are not restored.
func NameOf(sandboxID, host string) string {
	if host == hostname(ledger.Sandbox{Record: machine.Record{ID: sandboxID}}) {
		return ""
	}
	return host
}
