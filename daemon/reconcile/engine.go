package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/runtime"
)

const (
	// eventOverlap is how far a new event stream goes back. Events while there was no
	// stream then arrive twice rather than never.
	eventOverlap = 30 * time.Second
	// reconnectMin and reconnectMax bound the pause before a broken event stream is
	// opened again.
	reconnectMin, reconnectMax = 100 * time.Millisecond, 5 * time.Second
)

// followEvents keeps an event stream open. Events only enqueue sandboxes. Every new
// stream triggers a full look, because the previous stream may have lost events.
func (l *Loop) followEvents(ctx context.Context, resync chan<- struct{}) {
	pause := reconnectMin
	for ctx.Err() == nil {
		var opened time.Time
		ready := func() {
			pause, opened = reconnectMin, l.now()
			l.mu.Lock()
			l.askInfo, l.doubtful = true, nil
			l.doubtEngineLocked()
			l.mu.Unlock()
			poke(resync)
		}
		err := l.engine.Events(ctx, l.installID, l.now().Add(-eventOverlap), ready, l.hint)
		if ctx.Err() != nil {
			return
		}
		l.log.Info("the engine's event stream ended; it is opened again", "error", err)
		if !opened.IsZero() {
			l.lostStream(opened)
		}
		poke(resync)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, reconnectMax)
	}
}

func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// stateActions are the actions that may change the state of a sandbox. Actions that only the
// loop causes, such as "create" and "start", are not needed.
var stateActions = []string{"die", "destroy", "oom", "pause", "unpause", "rename", "disconnect", "remove"}

func (l *Loop) hint(ev runtime.Event) {
	gone := ev.Action == "destroy" || ev.Action == "remove"
	if gone {
		l.trust(ev.ObjectID) // the engine may report it after the sandbox is DELETED
	}
	if ev.SandboxID != "" && (slices.Contains(stateActions, ev.Action) || strings.HasPrefix(ev.Action, "health_status")) {
		if _, living := l.ledger.Sandbox(ev.SandboxID); living {
			if !gone {
				l.doubt(ev.ObjectID)
			}
			l.Enqueue(ev.SandboxID)
		}
	}
}

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

// digest is the state of a sandbox in a list of the engine, in comparable form.
type digest string

func digestOf(inv runtime.Inventory) digest {
	var parts []string
	for _, c := range inv.Containers {
		parts = append(parts, fmt.Sprint(c.ID, " ", c.State, " ", c.Detached, " ", c.Health))
	}
	for _, n := range inv.Networks {
		parts = append(parts, n.ID)
	}
	for _, v := range inv.Volumes {
		parts = append(parts, v.Name)
	}
	slices.Sort(parts)
	return digest(strings.Join(parts, "\n"))
}

// probeTimeout bounds the check whether the engine answers.
const probeTimeout = 3 * time.Second

// Probe reports whether the engine is usable now, and the install's. If it is known to be
// healthy, Probe makes no call.
func (l *Loop) Probe(ctx context.Context) error {
	if l.engineKnown() {
		return l.sameEngine(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	begun := l.now()
	err := l.engine.Ping(ctx)
	if err == nil {
		err = l.identify(ctx)
	}
	if isAnother(err) {
		return err
	}
	l.heardOfEngine(begun, runtime.EngineInfo{}, err)
	return err
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
		case err == nil && c.InstallID == l.installID && c.Nonce == sb.Nonce:
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

// remembered returns the sandbox's containers from the newest full look.
func (l *Loop) remembered(sb ledger.Sandbox) []runtime.Container {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ours(l.inventory[sb.ID], sb.Nonce).Containers
}

// remember adds a container that was just started to the newest full look, which may be
// older. The container must be shown even if the engine goes away now.
func (l *Loop) remember(sb ledger.Sandbox, c runtime.Container) {
	c.Identity = runtime.Identity{InstallID: l.installID, SandboxID: sb.ID, Nonce: sb.Nonce, Role: runtime.RolePrimary}
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

// outage is a period in which the engine did not answer: from its last answer before to
// its first answer after. until is zero while it lasts. The zero value means no outage.
type outage struct {
	from, until time.Time
}

// missed returns the outage after the engine failed to answer a query that was sent at
// begun. lastOK is the time of its last answer.
func (o outage) missed(begun, lastOK time.Time) outage {
	if begun.Before(o.until) {
		return o // a query sent in an outage has failed because of it
	}
	return o.begins(lastOK)
}

// lost returns the outage after an event stream broke that was opened at the given time.
// If a restarting engine has a socket that queues connections, as with systemd, calls
// only wait. Then the stream alone shows the restart.
func (o outage) lost(opened, lastOK time.Time) outage {
	if opened.Before(o.from) {
		return o // it broke because of the known outage
	}
	return o.begins(lastOK)
}

func (o outage) begins(lastOK time.Time) outage {
	if lastOK.IsZero() || o.lasts() {
		return o
	}
	return outage{from: lastOK}
}

// answered returns the outage after the engine has answered at the given time.
func (o outage) answered(at time.Time) outage {
	if o.lasts() {
		o.until = at
	}
	return o
}

func (o outage) lasts() bool { return !o.from.IsZero() && o.until.IsZero() }

// covers reports whether the container ended during the outage. The reason was then most
// likely the restart of the engine. The engine's clock is that of this host.
func (o outage) covers(c *runtime.Container) bool {
	ended := c != nil && (c.State == runtime.StateExited || c.State == runtime.StateDead)
	return ended && !o.from.IsZero() && c.FinishedAt.After(o.from) &&
		(o.until.IsZero() || c.FinishedAt.Before(o.until))
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
