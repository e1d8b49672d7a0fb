package reconcile

import (
	"context"
	"slices"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// fenced reports whether a sandbox is to be kept from the addresses of the host.
func (l *Loop) fenced(sb ledger.Sandbox) bool {
	return l.opts.FenceMode != FenceOff && !sb.Spec.GetSecurity().GetAllowHost()
}

// unfenced returns the interfaces of a sandbox's networks for which rules are to be made.
// If no rules can be made here, it returns none, unless they are required.
func (l *Loop) unfenced(sb ledger.Sandbox, networks []runtime.Network) []string {
	if !l.fenced(sb) || len(networks) == 0 {
		return nil
	}
	names := interfaces(networks)
	gaps, err := l.fence.Gaps(names)
	l.guarded(err)
	if err != nil && (l.opts.FenceMode == FenceRequired || !cannotFence(err)) {
		return names
	}
	return gaps
}

func interfaces(networks []runtime.Network) []string {
	names := make([]string, 0, len(networks))
	for _, n := range networks {
		names = append(names, n.Interface)
	}
	return names
}

func cannotFence(err error) bool {
	return fault.ReasonOf(err) == agboxv1.ErrorReason_HOST_FENCE_UNAVAILABLE
}

// raiseFence makes the missing rules of a sandbox.
func (l *Loop) raiseFence(o *machine.Observation) error {
	err := l.fence.Raise(o.Unfenced)
	l.guarded(err)
	if cannotFence(err) && l.opts.FenceMode != FenceRequired {
		err = nil
	}
	if err == nil {
		o.Unfenced = nil
	}
	return err
}

// lookAtFence enqueues the sandboxes in use that lack rules, and removes rules that nothing
// needs any more.
func (l *Loop) lookAtFence(_ context.Context, look *fullLook) error {
	l.tidyFence()
	if l.opts.FenceMode == FenceOff || !look.known {
		return nil
	}
	networks := make(map[string][]runtime.Network)
	var all []string
	for _, sb := range l.ledger.Sandboxes() {
		if l.fenced(sb) && (sb.State == machine.Pending || sb.State == machine.Ready) {
			networks[sb.ID] = ours(look.bySandbox[sb.ID], sb.Nonce).Networks
			all = append(all, interfaces(networks[sb.ID])...)
		}
	}
	if len(all) == 0 {
		return nil
	}
	gaps, err := l.fence.Gaps(all)
	for id, list := range networks {
		if slices.ContainsFunc(interfaces(list), func(name string) bool { return slices.Contains(gaps, name) }) {
			l.Enqueue(id)
		}
	}
	if cannotFence(err) {
		return nil // Unguarded says so
	}
	return err
}

// raiseEarly makes the rules of a new network while other things are made. If that fails,
// the step Fence repeats it.
func (l *Loop) raiseEarly(sb ledger.Sandbox, network runtime.Network) {
	if missing := l.unfenced(sb, []runtime.Network{network}); len(missing) > 0 {
		_ = l.fence.Raise(missing)
	}
}

// trimFence removes the rules of networks that were removed.
func (l *Loop) trimFence() { l.trimmed(l.fence.Trim()) }

// tidyFence removes all rules that nothing needs any more.
func (l *Loop) tidyFence() {
	if l.opts.FenceMode == FenceOff {
		l.trimmed(l.fence.Clear())
		return
	}
	l.trimmed(l.fence.Tidy())
}

// trimmed logs why rules could not be removed.
func (l *Loop) trimmed(err error) {
	if err != nil && !cannotFence(err) {
		l.log.Warn("rules for networks that do not exist any more cannot be removed", "error", err)
	}
}

// guarded records whether rules could be made.
func (l *Loop) guarded(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unguarded = nil
	if cannotFence(err) {
		l.unguarded = err
	}
}

// Unguarded returns why the daemon cannot keep sandboxes from the addresses of the host,
// or nil if it can, or need not.
func (l *Loop) Unguarded() error {
	if l.opts.FenceMode == FenceOff {
		return nil
	}
	if err := l.fence.Able(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unguarded
}
