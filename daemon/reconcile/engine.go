package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

const (
	// eventOverlap is how far back a new event stream reaches: what happened
	// while there was none comes twice rather than never.
	eventOverlap = 30 * time.Second
	// reconnectMin and reconnectMax bound the pause before a lost event stream
	// is opened again.
	reconnectMin, reconnectMax = 100 * time.Millisecond, 5 * time.Second
)

// followEvents keeps an event stream open. Events are hints: they enqueue. Every
// new stream asks for a full look, because the one before it may have lost some.
func (l *Loop) followEvents(ctx context.Context, resync chan<- struct{}) {
	pause := reconnectMin
	for ctx.Err() == nil {
		var opened time.Time
		ready := func() {
			pause, opened = reconnectMin, l.Now()
			l.mu.Lock()
			l.askInfo, l.doubtful = true, nil
			l.mu.Unlock()
			poke(resync)
		}
		err := l.Engine.Events(ctx, l.InstallID, l.Now().Add(-eventOverlap), ready, l.hint)
		if ctx.Err() != nil {
			return
		}
		l.Log.Info("the engine's event stream ended; it is opened again", "error", err)
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

// telling are the actions after which a sandbox may not be what it was. What
// the loop causes itself, such as "create" and "start", tells it nothing.
var telling = []string{"die", "destroy", "oom", "pause", "unpause", "rename", "disconnect", "remove"}

func (l *Loop) hint(ev runtime.Event) {
	gone := ev.Action == "destroy" || ev.Action == "remove"
	if gone {
		l.trust(ev.ObjectID) // the engine may report it after the sandbox is DELETED
	}
	if ev.SandboxID != "" && (slices.Contains(telling, ev.Action) || strings.HasPrefix(ev.Action, "health_status")) {
		if _, living := l.Ledger.Sandbox(ev.SandboxID); living {
			if !gone {
				l.doubt(ev.ObjectID)
			}
			l.Enqueue(ev.SandboxID)
		}
	}
}

// doubt has a container inspected at the next look: an engine reports an end before
// its lists show it, while an inspection waits until the end is dealt with.
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

// doubted tells whether a container is to be looked at closely, once.
func (l *Loop) doubted(containerID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	doubted := l.doubtful[containerID]
	delete(l.doubtful, containerID)
	return doubted
}

// resyncLoop takes a full look at every poke and at least every Resync. A look
// never overlaps another.
func (l *Loop) resyncLoop(ctx context.Context, poked <-chan struct{}) {
	tick := time.NewTicker(l.Resync)
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

func (l *Loop) resync(life context.Context) {
	ctx, cancel := context.WithTimeout(life, lookTimeout)
	defer cancel()
	begun := l.Now()
	inv, err := l.Engine.Inventory(ctx, l.InstallID)
	var info runtime.EngineInfo
	if err == nil && l.engineUnknown() {
		info, err = l.Engine.Info(ctx)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	l.heardOfEngine(begun, info, err)
	if err != nil {
		return
	}
	bySandbox := groupBySandbox(inv)
	l.mu.Lock()
	l.inventory, l.inventoryAt = maps.Clone(bySandbox), begun // remember changes it
	l.mu.Unlock()
	for _, sb := range l.Ledger.Sandboxes() {
		if l.needsLook(sb.Record, bySandbox[sb.ID]) {
			l.Enqueue(sb.ID)
		}
	}
	l.sweep(life, inv)
}

// needsLook tells whether a full look shows something that the sandbox's worker
// has not seen, or the worker is in trouble that may be over.
func (l *Loop) needsLook(r machine.Record, inv runtime.Inventory) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.workers[r.ID]
	switch {
	case r.State == machine.Stopped || r.State == machine.Failed && r.WasReady:
		return false
	case w == nil || w.looked.IsZero() || w.trouble != "":
		return true
	}
	return !w.running && digestOf(ours(inv, r.Nonce)) != w.seen
}

func (l *Loop) engineKnown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.engine.Known && l.engine.Err == nil
}

// engineUnknown tells whether the engine has to be asked who it is: after an
// outage, or because a new event stream may come from another one.
func (l *Loop) engineUnknown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.engine.Info.Version == "" || l.engine.Err != nil || l.askInfo
}

// heardOfEngine keeps the engine's health, as what was asked at begun shows it, and
// says once when it changes.
func (l *Loop) heardOfEngine(begun time.Time, info runtime.EngineInfo, err error) {
	l.mu.Lock()
	before := l.engine
	l.engine.Known, l.engine.Err = true, err
	if info.Version != "" {
		l.engine.Info, l.askInfo = info, false
	}
	if err == nil {
		l.answeredAt = l.Now()
		l.outage = l.outage.answered(l.answeredAt)
	} else {
		l.outage = l.outage.missed(begun, l.answeredAt)
	}
	l.mu.Unlock()
	switch {
	case err != nil && (before.Err == nil || !before.Known):
		l.Log.Warn("the engine does not answer; sandboxes are degraded until it does", "error", err)
	case err == nil && before.Err != nil:
		l.Log.Info("the engine answers again")
	}
}

// shared returns the sandbox's part of the newest full look, if that was begun
// after since.
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

// digest is what a list shows of a sandbox, in comparable form.
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

// probeTimeout bounds the question whether the engine is there.
const probeTimeout = 3 * time.Second

// Probe tells whether the engine can be worked with now. What is known to be
// well costs nothing; otherwise the engine is asked.
func (l *Loop) Probe(ctx context.Context) error {
	if l.engineKnown() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	begun := l.Now()
	err := l.Engine.Ping(ctx)
	l.heardOfEngine(begun, runtime.EngineInfo{}, err)
	return err
}

// Containers returns the sandbox's containers: as they are if the engine
// answers soon, else as it last showed them. An engine that is known not to
// answer is not asked, so that reads stay fast.
func (l *Loop) Containers(ctx context.Context, sb ledger.Sandbox) []runtime.Container {
	if l.Health().Err != nil {
		return l.remembered(sb)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	inv, err := l.Engine.SandboxInventory(ctx, l.InstallID, sb.ID)
	if err != nil {
		return l.remembered(sb)
	}
	shown := ours(inv, sb.Nonce).Containers
	for i, c := range shown {
		if closer, err := l.Engine.InspectContainer(ctx, c.ID); err == nil {
			shown[i] = closer
		}
	}
	return shown
}

// remembered are the sandbox's containers as the newest full look showed them.
func (l *Loop) remembered(sb ledger.Sandbox) []runtime.Container {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ours(l.inventory[sb.ID], sb.Nonce).Containers
}

// remember adds a container that was just started to the newest full look, which
// may be older: it has to be shown even if the engine goes away now.
func (l *Loop) remember(sb ledger.Sandbox, c runtime.Container) {
	c.Identity = runtime.Identity{InstallID: l.InstallID, SandboxID: sb.ID, Nonce: sb.Nonce, Role: runtime.RolePrimary}
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
