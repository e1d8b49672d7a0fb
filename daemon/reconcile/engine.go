package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

const (
	// lookTimeout bounds a look at the engine. One hung container can block it.
	lookTimeout = 10 * time.Second
	// verbTimeout bounds a mutating verb. An engine under load takes seconds.
	verbTimeout = time.Minute
	// pullTimeout bounds the pull of an image.
	pullTimeout = 30 * time.Minute
	// connectTimeout bounds one attempt to reach a supervisor.
	connectTimeout = 2 * time.Second
	// stopGrace is the time between the engine's stop signal and its kill. The
	// supervisor's own grace for execs is shorter.
	stopGrace = 10 * time.Second
	// removeGrace is stopGrace for a removal.
	removeGrace = 2 * time.Second
	// retryMin and retryMax bound the pause before a failed step is retried.
	retryMin, retryMax = 200 * time.Millisecond, 10 * time.Second
	// maxSteps ends a round that does not come to rest. The next round continues.
	maxSteps = 64
)

// doubt makes the next look inspect a container: the engine reports an end before its
// lists show it, but an inspection waits until the end is processed.
func (l *Loop) doubt(containerID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doubtful == nil {
		l.doubtful = make(map[string]bool)
	}
	l.doubtful[containerID] = true
}

// trust undoes doubt.
func (l *Loop) trust(containerID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.doubtful, containerID)
}

// inDoubt reports whether an event has announced a change of a container since the last
// look.
func (l *Loop) inDoubt(containerID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doubtful[containerID]
}

// doubted reports, once, whether a container must be inspected.
func (l *Loop) doubted(containerID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	doubted := l.doubtful[containerID]
	delete(l.doubtful, containerID)
	return doubted
}

func (l *Loop) engineKnown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health.Known && l.health.Err == nil
}

// engineUnknown reports whether the engine's identity must be queried again: after an
// outage, or because a new event stream may come from another engine.
func (l *Loop) engineUnknown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health.Info.Version == "" || l.health.Err != nil || l.askInfo
}

// heardOfEngine records the health of the engine according to the answer to a query that
// was sent at begun. It logs each change once.
func (l *Loop) heardOfEngine(begun time.Time, info runtime.EngineInfo, err error) {
	now := l.now()
	l.mu.Lock()
	before := l.health
	l.health.Known, l.health.Err = true, err
	if info.Version != "" {
		l.health.Info, l.askInfo = info, false
	}
	if err == nil {
		l.answeredAt = now
		l.outage = l.outage.answered(l.answeredAt)
	} else {
		l.outage = l.outage.missed(begun, l.answeredAt)
		l.doubtEngineLocked()
	}
	l.mu.Unlock()
	switch {
	case err != nil && (before.Err == nil || !before.Known):
		l.log.Warn("the engine does not answer; sandboxes are degraded until it does", "error", err)
	case err == nil && before.Err != nil:
		l.log.Info("the engine answers again")
	}
}

// shared returns the sandbox's part of the newest full look, if that was begun after
// since.
func (l *Loop) shared(sandboxID string, since time.Time) (runtime.Inventory, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inventory[sandboxID], l.inventoryAt.After(since)
}

// groupBySandbox groups objects by the sandbox that they belong to.
func groupBySandbox(inv runtime.Inventory) map[string]runtime.Inventory {
	grouped := make(map[string]runtime.Inventory)
	for _, c := range inv.Containers {
		part := grouped[c.SandboxID]
		part.Containers = append(part.Containers, c)
		grouped[c.SandboxID] = part
	}
	for _, n := range inv.Networks {
		part := grouped[n.SandboxID]
		part.Networks = append(part.Networks, n)
		grouped[n.SandboxID] = part
	}
	for _, v := range inv.Volumes {
		part := grouped[v.SandboxID]
		part.Volumes = append(part.Volumes, v)
		grouped[v.SandboxID] = part
	}
	return grouped
}

// remembered returns the sandbox's containers from the newest full look.
func (l *Loop) remembered(sb ledger.Sandbox) []runtime.Container {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ours(l.inventory[sb.ID], sb.Nonce).Containers
}

// remember adds a container that was just started to the newest full look, which may be
// older. The container must be shown even if the engine goes away now.
func (l *Loop) remember(sb ledger.Sandbox, c runtime.Container) {
	c.Identity = runtime.Identity{InstallID: l.opts.InstallID, SandboxID: sb.ID, Nonce: sb.Nonce, Role: runtime.RolePrimary}
	c.Name = runtime.PrimaryName(sb.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inventory == nil {
		l.inventory = make(map[string]runtime.Inventory)
	}
	known := l.inventory[sb.ID]
	known.Containers = append(slices.DeleteFunc(slices.Clone(known.Containers), func(k runtime.Container) bool { return k.ID == c.ID }), c)
	l.inventory[sb.ID] = known
}

// endedWithEngine reports whether the container ended while the engine was away.
func (l *Loop) endedWithEngine(c *runtime.Container) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage.covers(c)
}

// missedEngine records that the engine did not answer a step that began at begun. The
// next full look updates its health.
func (l *Loop) missedEngine(begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage = l.outage.missed(begun, l.answeredAt)
	l.doubtEngineLocked()
}

// lostStream records that an event stream broke that was opened at the given time.
func (l *Loop) lostStream(opened time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage = l.outage.lost(opened, l.answeredAt)
	l.doubtEngineLocked()
}

// retryable reports whether the same step may succeed later by itself, because the engine
// was away or slow.
func retryable(err error) bool {
	if reason := fault.ReasonOf(err); reason == agboxv1.ErrorReason_IMAGE_PULL_FAILED {
		return false
	}
	return errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)
}

// ours removes objects with our install's label but not the sandbox's nonce.
func ours(inv runtime.Inventory, nonce string) runtime.Inventory {
	return runtime.Inventory{
		Containers: slices.DeleteFunc(slices.Clone(inv.Containers), func(c runtime.Container) bool { return c.Nonce != nonce }),
		Networks:   slices.DeleteFunc(slices.Clone(inv.Networks), func(n runtime.Network) bool { return n.Nonce != nonce }),
		Volumes:    slices.DeleteFunc(slices.Clone(inv.Volumes), func(v runtime.Volume) bool { return v.Nonce != nonce }),
	}
}

// doubtEngine means that the engine may have been replaced.
func (l *Loop) doubtEngine() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtEngineLocked()
}

func (l *Loop) doubtEngineLocked() {
	l.same = false
	l.doubts++
}
