// Package reconcile has the one loop that changes sandboxes. It loads a record, observes,
// asks machine.Next, and executes the step. Start-up, engine events, requests, timers and
// the periodic resync all do the same: Enqueue.
//
// It is the only caller of the engine's mutating verbs. A sandbox has at most one round
// at a time, in a worker of its pool. Run waits for all of them.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/agbox/agbox/daemon/build"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// engineSlots is the maximum number of concurrent verbs. The engine serializes most of
// them, so more would only lengthen its queue.
const engineSlots = 8

// stopSlots is the maximum number of containers in their stop grace at the same time.
// That is mostly waiting, and must not block verbs of other sandboxes.
const stopSlots = 64

// New makes a Loop. It does nothing before Run.
func New(o Options) *Loop {
	if o.AvailableMemory == nil {
		o.AvailableMemory = AvailableMemory
	}
	l := &Loop{
		engine: o.Engine, links: o.Links, execs: o.Execs, files: o.Files, room: o.Room, fence: o.Fence, agents: o.Agents, review: o.Review, ledger: o.Ledger,
		paths: o.Paths, host: o.Host, builds: build.New(o.Engine, o.Paths.BuildContexts()), now: o.Now, log: o.Log,
		opts: o,

		slots:     make(chan struct{}, engineSlots),
		stops:     make(chan struct{}, stopSlots),
		marking:   make(chan struct{}, 1),
		comparing: make(chan struct{}, comparisons),
		sandboxes: make(map[string]*sandboxWork),
		poked:     make(chan struct{}, 1),
		firstLook: make(chan struct{}),

		agentsAtWork: make(map[string]*agentWork),
		stocks:       make(map[string]*stock),
	}
	l.workers = newWorkers(o.Now, l.round)
	l.phases = l.resyncPhases()
	return l
}

// Run reconciles until ctx ends, then waits for the workers. Its end does not change any
// sandbox.
func (l *Loop) Run(ctx context.Context) {
	l.mu.Lock()
	l.ctx = ctx
	l.mu.Unlock()
	l.workers.Begin(ctx)
	for _, sb := range l.ledger.Sandboxes() {
		l.Enqueue(sb.ID)
	}
	l.enqueueAgents()
	if err := l.Unguarded(); err != nil {
		l.log.Warn("sandboxes can reach the addresses of this host", "error", err)
	}
	l.wg.Go(func() { l.followEvents(ctx, l.poked) })
	l.wg.Go(func() { l.resyncLoop(ctx, l.poked) })
	<-ctx.Done()
	l.workers.Wait()
	l.wg.Wait()
	l.builds.Wait()
	l.tidyFence()
}

// round runs one round of whatever the turn is about. A panic, for example over a record that
// no rule expects, stops only this one: a daemon that ended with it would end again at once.
func (l *Loop) round(ctx context.Context, turn *workTurn) (wake time.Time) {
	defer func() {
		if r := recover(); r != nil {
			l.roundPanicked(turn, fmt.Sprintf("%v\n%s", r, debug.Stack()))
			wake = l.now().Add(retryMax)
		}
	}()
	switch turn.Kind {
	case forSandbox:
		defer l.enqueueAgentsOf(turn.ID)
		defer l.enqueuePoolOf(turn.ID)
		return l.sandboxRound(ctx, turn)
	case forAgent:
		return l.agentRound(ctx, turn.ID)
	case forPool:
		return l.poolRound(ctx, turn.ID)
	}
	return time.Time{}
}

// roundPanicked tells of the panic of a round.
func (l *Loop) roundPanicked(turn *workTurn, what string) {
	const said = "a round panicked; the others go on, and it is repeated"
	const trouble = "The daemon cannot go on with it because of a defect of agbox, which \"agbox daemon logs\" describes; it is tried again."
	if turn.Kind == forAgent {
		l.log.Error(said, "agent_id", turn.ID, "error", what)
		l.setAgentTrouble(l.agentWork(turn.ID), trouble)
		return
	}
	l.log.Error(said, "sandbox_id", turn.ID, "error", what)
	l.setTrouble(l.begin(turn), trouble)
}

// resyncPhases are the phases in their order. Those about the engine follow those about
// agents, so that a slow engine does not delay these.
func (l *Loop) resyncPhases() []phase {
	return []phase{
		{"dispatch", l.dispatchAgents},
		{"lifecycle-cleanup", l.cleanUpAgents},
		{"engine", l.lookAtEngine},
		{"sandboxes", l.enqueueChanged},
		{"pools", l.lookAtPools},
		{"fence", l.lookAtFence},
		{"orphans", l.sweepOrphans},
		{"orphan-reparent", l.reparentAgents},
	}
}

// resyncLoop runs a resync after every poke, and at least every Resync. It is the only
// goroutine that does, so two never overlap.
func (l *Loop) resyncLoop(ctx context.Context, poked <-chan struct{}) {
	tick := time.NewTicker(l.opts.Resync)
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
	defer l.lookedOnce.Do(func() { close(l.firstLook) })
	ctx, cancel := context.WithTimeout(life, lookTimeout)
	defer cancel()
	begun := l.now()
	inv, err := l.engine.Inventory(ctx, l.opts.InstallID)
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
		err := l.engine.Events(ctx, l.opts.InstallID, l.now().Add(-eventOverlap), ready, l.hint)
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
