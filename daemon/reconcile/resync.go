package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// A resync is what the loop does without a cause, in case a wake-up was missed. Its
// phases run one after the other, in the order of Loop.phases. They only observe and
// enqueue: what follows from an observation is decided in rounds.
type phase struct {
	// name is for the log.
	name string
	run  func(ctx context.Context, look *fullLook) error
}

// fullLook is what the phases of one resync have in common.
type fullLook struct {
	// inventory has all objects of the install in the engine, and bySandbox the same by
	// sandbox. known is false if the engine did not answer.
	inventory runtime.Inventory
	bySandbox map[string]runtime.Inventory
	known     bool
}

// resyncPhases are the phases in their order. Those about the engine follow those about
// agents, so that a slow engine does not delay these.
func (l *Loop) resyncPhases() []phase {
	return []phase{
		{"dispatch", l.dispatchAgents},
		{"lifecycle-cleanup", l.cleanUpAgents},
		{"engine", l.lookAtEngine},
		{"sandboxes", l.enqueueChanged},
		{"fence", l.lookAtFence},
		{"orphans", l.sweepOrphans},
		{"orphan-reparent", l.reparentAgents},
	}
}

// resyncLoop runs a resync after every poke, and at least every Resync. It is the only
// goroutine that does, so two never overlap.
func (l *Loop) resyncLoop(ctx context.Context, poked <-chan struct{}) {
	tick := time.NewTicker(l.resyncEvery)
	defer tick.Stop()
	for {
		l.resync(ctx)
		select {
		case <-tick.C:
		case <-poked:
		case <-ctx.Done():
			return
		}
	}
}

// resync runs every phase. The error or panic of one does not keep the others from
// running.
func (l *Loop) resync(ctx context.Context) {
	look := new(fullLook)
	for _, p := range l.phases {
		if ctx.Err() != nil {
			return
		}
		if err := p.isolated(ctx, look); err != nil && ctx.Err() == nil {
			l.log.Error("a phase of the resync failed; the others run, and it is repeated at the next resync", "phase", p.name, "error", err)
		}
	}
}

// isolated runs the phase and returns a panic as an error.
func (p phase) isolated(ctx context.Context, look *fullLook) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return p.run(ctx, look)
}

// lookAtEngine lists the engine's objects and updates its health. An engine that does not
// answer is not an error of the phase: heardOfEngine logs it once.
func (l *Loop) lookAtEngine(life context.Context, look *fullLook) error {
	ctx, cancel := context.WithTimeout(life, lookTimeout)
	defer cancel()
	begun := l.now()
	inv, err := l.engine.Inventory(ctx, l.installID)
	var info runtime.EngineInfo
	if err == nil {
		err = l.identify(ctx)
	}
	if isAnother(err) {
		return nil // identify has told
	}
	if err == nil && l.engineUnknown() {
		info, err = l.engine.Info(ctx)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	l.heardOfEngine(begun, info, err)
	if err != nil {
		return nil
	}
	if info.Version != "" {
		l.keepIdentity(ctx, info)
	}
	look.inventory, look.bySandbox, look.known = inv, groupBySandbox(inv), true
	l.mu.Lock()
	l.inventory, l.inventoryAt = maps.Clone(look.bySandbox), begun // remember modifies it
	l.mu.Unlock()
	return nil
}

// enqueueChanged enqueues the sandboxes that look otherwise than their workers know, and
// those whose log folder was removed.
func (l *Loop) enqueueChanged(_ context.Context, look *fullLook) error {
	if !look.known {
		return nil
	}
	for _, sb := range l.ledger.Sandboxes() {
		if l.needsLook(sb.Record, look.bySandbox[sb.ID]) || l.links.CheckLogs(sb.ID) != nil {
			l.Enqueue(sb.ID)
		}
	}
	return nil
}

// sweepOrphans notes the orphans and removes those whose time has come.
func (l *Loop) sweepOrphans(ctx context.Context, look *fullLook) error {
	if look.known {
		l.sweep(ctx, look.inventory)
	}
	return nil
}

// needsLook reports whether a full look shows a change that the sandbox's worker has not
// seen, or whether the worker is in trouble that may be over.
func (l *Loop) needsLook(r machine.Record, inv runtime.Inventory) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.sandboxes[r.ID]
	switch {
	case r.Missing() && isBack(r, inv):
		return !l.workers.Busy(sandboxKey(r.ID))
	case r.State == machine.Stopped || r.State == machine.Failed && r.WasReady:
		return false
	case w == nil || w.looked.IsZero() || w.trouble != "":
		return true
	}
	return !l.workers.Busy(sandboxKey(r.ID)) && digestOf(ours(inv, r.Nonce)) != w.seen
}

// isBack reports whether a primary runs that was missing.
func isBack(r machine.Record, inv runtime.Inventory) bool {
	return slices.ContainsFunc(inv.Containers, func(c runtime.Container) bool {
		return c.Role == runtime.RolePrimary && c.State == runtime.StateRunning && c.Nonce == r.Nonce
	})
}
