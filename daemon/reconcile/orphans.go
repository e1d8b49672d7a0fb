package reconcile

import (
	"context"
	"fmt"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// Orphans are engine objects with our install's label for which Orphaned is true. The
// install id is random and not known outside. So an object with our label and a wrong
// nonce is from an earlier sandbox of ours, or somebody has copied the label on purpose.
// In both cases it is removed, but only after it has been seen for the grace period, so
// that an object that is just being adopted is not removed.

// sweep records the orphans of a full look and removes those whose grace is over,
// containers before networks and volumes. Only the goroutine of resyncLoop calls it.
func (l *Loop) sweep(ctx context.Context, inv runtime.Inventory) {
	if l.opts.OrphanGrace <= 0 {
		return
	}
	var due []*orphan
	seen := make(map[string]*orphan)
	for _, found := range objects(inv) {
		why, orphaned := l.Orphaned(ctx, found.Identity)
		if !orphaned {
			continue
		}
		o, known := l.orphans[found.id]
		if !known {
			found.since, o = l.now(), found
			l.log.Warn("an orphan was found; it is removed after its grace period", "kind", o.kind, "name", o.name,
				"id", o.id, "sandbox_id", o.SandboxID, "why", why, "grace", l.opts.OrphanGrace)
		}
		seen[o.id] = o
		if l.now().Sub(o.since) >= l.opts.OrphanGrace || known && l.leftBehind(ctx, o) {
			due = append(due, o)
		}
	}
	l.orphans = seen
	if len(due) == 0 || !l.sweeping.CompareAndSwap(false, true) {
		return // a slow removal must not delay the next look
	}
	l.wg.Go(func() {
		defer l.sweeping.Store(false)
		for _, o := range due {
			l.removeOrphan(ctx, o)
		}
	})
}

// leftBehind reports whether the object certainly belongs to a deleted sandbox: id and
// nonce are those of its record. An engine makes such objects when it executes a request
// of a daemon that was killed right after sending it. Nobody needs them, so they get no
// grace beyond a second look.
func (l *Loop) leftBehind(ctx context.Context, o *orphan) bool {
	past, err := l.ledger.Past(ctx, o.SandboxID)
	return err == nil && past.Over() && past.Nonce != "" && past.Nonce == o.Nonce
}

// objects lists containers, then networks, then volumes.
func objects(inv runtime.Inventory) []*orphan {
	list := make([]*orphan, 0, len(inv.Containers)+len(inv.Networks)+len(inv.Volumes))
	for _, c := range inv.Containers {
		list = append(list, &orphan{Identity: c.Identity, id: c.ID, name: c.Name, kind: "container"})
	}
	for _, n := range inv.Networks {
		list = append(list, &orphan{Identity: n.Identity, id: n.ID, name: n.Name, kind: "network"})
	}
	for _, v := range inv.Volumes {
		list = append(list, &orphan{Identity: v.Identity, id: v.Name, name: v.Name, kind: "volume"})
	}
	return list
}

// owned reports whether a sandbox may need the object. In doubt it returns true.
func (l *Loop) owned(ctx context.Context, o *orphan) bool {
	if o.InstallID != l.opts.InstallID {
		return true // another install's
	}
	owned, err := l.ledger.Owns(ctx, o.SandboxID, o.Nonce)
	return owned || err != nil
}

// removeOrphan removes one orphan and logs that. A failure is logged once and retried at
// the next full look.
func (l *Loop) removeOrphan(ctx context.Context, o *orphan) {
	var err error
	switch o.kind {
	case "network":
		err = l.RemoveOrphanedNetwork(ctx, runtime.Network{Identity: o.Identity, ID: o.id})
	case "volume":
		err = l.RemoveOrphanedVolume(ctx, runtime.Volume{Identity: o.Identity, Name: o.id})
	default:
		err = l.RemoveOrphanedContainer(ctx, runtime.Container{Identity: o.Identity, ID: o.id})
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		l.log.Warn("an orphan was removed", "kind", o.kind, "name", o.name, "id", o.id, "sandbox_id", o.SandboxID)
	case !o.tried:
		o.tried = true
		l.log.Warn("an orphan cannot be removed; it is tried again", "kind", o.kind, "name", o.name, "id", o.id,
			"sandbox_id", o.SandboxID, "error", err)
	}
}

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
	return l.removeOrphaned(ctx, c.Identity, c.ID, l.engine.RemoveContainer)
}

// RemoveOrphanedNetwork does the same for a network. Its containers must have been
// removed before.
func (l *Loop) RemoveOrphanedNetwork(ctx context.Context, n runtime.Network) error {
	return l.removeOrphaned(ctx, n.Identity, n.ID, l.engine.RemoveNetwork)
}

// RemoveOrphanedVolume does the same for a volume.
func (l *Loop) RemoveOrphanedVolume(ctx context.Context, v runtime.Volume) error {
	return l.removeOrphaned(ctx, v.Identity, v.Name, l.engine.RemoveVolume)
}

func (l *Loop) removeOrphaned(ctx context.Context, of runtime.Identity, id string, remove func(context.Context, string) error) error {
	if _, orphaned := l.Orphaned(ctx, of); !orphaned {
		return fmt.Errorf("it belongs to sandbox %s by now", of.SandboxID)
	}
	return l.verb(ctx, verbTimeout, func(ctx context.Context) error { return remove(ctx, id) })
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
