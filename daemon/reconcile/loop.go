// Package reconcile holds the one loop that moves sandboxes: it loads a record,
// observes, asks machine.Next, and does what it says. Start-up, engine events,
// requests, timers and the periodic resync all do the same thing: Enqueue.
//
// It is the only caller of the engine's mutating verbs. A sandbox has at most
// one worker at a time; the Loop owns the workers and waits for them in Run.
package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
)

// Options are the parts and figures of a Loop.
type Options struct {
	Engine Engine
	Links  Links
	Execs  Execs
	Files  Files
	Ledger *ledger.Ledger
	Paths  paths.Install
	// Host checks what sandboxes take from the host.
	Host hostfiles.Checker
	// InstallID marks what is ours in the engine.
	InstallID string
	// Supervisor is the host path of the supervisor binary for new containers.
	Supervisor string
	// HandedOver tells that the daemon before this one left its work to it.
	HandedOver bool
	// PendingRecovery says what becomes of sandboxes that an earlier daemon was making.
	PendingRecovery machine.PendingRecovery
	// Resync is the pause between two full looks at the engine.
	Resync time.Duration
	// Revival is the policy of sandboxes whose spec names none.
	Revival agboxv1.RevivalPolicy
	// ReadyWithin is how long a supervisor may take to answer after the start.
	ReadyWithin time.Duration
	// OrphanGrace is how long an object of ours that belongs to no sandbox must
	// have been seen before it is removed; 0: never.
	OrphanGrace time.Duration
	// MaxExecLog and MaxSandboxLog are the bytes of output that new containers keep of
	// each stream of an exec, and of all execs together; 0: no limit.
	MaxExecLog    uint64
	MaxSandboxLog uint64
	Now           func() time.Time
	Log           *slog.Logger
}

// Loop reconciles all sandboxes of an install.
type Loop struct {
	Options

	// slots bounds how many workers speak with the engine at a time, stops how many
	// wait for containers to end.
	slots, stops chan struct{}
	wg           sync.WaitGroup
	// orphans are those of the newest full look by their ids in the engine; of the
	// goroutine that looks only. sweeping is true while some are being removed.
	orphans  map[string]*orphan
	sweeping atomic.Bool

	// mu guards what follows; never held across a call.
	mu      sync.Mutex
	ctx     context.Context // nil until Run; cancelled when it ends
	workers map[string]*worker
	// engine is what was last heard of the engine.
	engine EngineHealth
	// outage is the newest time without the engine; answeredAt is its last answer.
	outage     outage
	answeredAt time.Time
	// askInfo: the engine may be another one than before, and is to say who it is.
	askInfo bool
	// inventory is the newest full look, and when it was begun.
	inventory   map[string]runtime.Inventory
	inventoryAt time.Time
	// doubtful are the containers, by their ids in the engine, of which an event has
	// told something that its lists may not show yet.
	doubtful map[string]bool
}

// EngineHealth is what the loop last heard of the engine.
type EngineHealth struct {
	// Known is false until the engine was asked for the first time.
	Known bool
	Info  runtime.EngineInfo
	// Err is why the engine does not answer; nil while it does.
	Err error
}

// engineSlots is how many verbs may be under way at a time. An engine
// serialises most of them; more only lengthens its queue.
const engineSlots = 8

// stopSlots is how many containers may be in their grace at a time. That is mostly
// waiting, and must not keep the other verbs of other sandboxes waiting too.
const stopSlots = 64

// New makes a Loop; nothing moves before Run.
func New(o Options) *Loop {
	return &Loop{
		Options: o,
		slots:   make(chan struct{}, engineSlots),
		stops:   make(chan struct{}, stopSlots),
		workers: make(map[string]*worker),
	}
}

// Run reconciles until ctx ends, then waits for the workers. No sandbox is
// touched by its ending.
func (l *Loop) Run(ctx context.Context) {
	l.mu.Lock()
	l.ctx = ctx
	l.mu.Unlock()
	for _, sb := range l.Ledger.Sandboxes() {
		l.Enqueue(sb.ID)
	}
	resync := make(chan struct{}, 1)
	l.wg.Go(func() { l.followEvents(ctx, resync) })
	l.wg.Go(func() { l.resyncLoop(ctx, resync) })
	<-ctx.Done()
	l.mu.Lock()
	for _, w := range l.workers {
		w.stopTimerLocked()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// Enqueue has the sandbox looked at. It never blocks.
func (l *Loop) Enqueue(sandboxID string) { l.enqueue(sandboxID, false) }

// Interrupt is Enqueue for a changed wish: a pull or a wait that the worker is
// in is given up.
func (l *Loop) Interrupt(sandboxID string) { l.enqueue(sandboxID, true) }

func (l *Loop) enqueue(sandboxID string, interrupt bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil || l.ctx.Err() != nil {
		return // before Run everything is enqueued anyway; after it nothing is
	}
	w := l.workers[sandboxID]
	if w == nil {
		w = &worker{id: sandboxID}
		l.workers[sandboxID] = w
	}
	w.dirty, w.dirtyAt = true, l.Now()
	w.stopTimerLocked()
	if interrupt && w.giveUp != nil {
		w.giveUp()
	}
	if !w.running {
		w.running = true
		l.wg.Go(func() { l.work(w) })
	}
}

// worker is the loop's memory of one sandbox. Its fields are guarded by Loop.mu
// but for those that only the running worker goroutine touches.
type worker struct {
	id      string
	dirty   bool
	dirtyAt time.Time
	running bool
	// giveUp cancels the interruptible part of the step under way.
	giveUp context.CancelFunc
	// timer enqueues the sandbox when nothing else does.
	timer *time.Timer
	// looked is when the engine last showed the sandbox; zero: not yet.
	looked time.Time
	// trouble is why the sandbox is degraded; empty when it is not.
	trouble string
	// seen is what the engine last showed, to notice a change in a resync.
	seen digest

	// services remembers what was done about the services, by name.
	services map[string]*serviceWork

	// Of the goroutine only:

	// hooks are the execs whose end somebody waits for, or has waited for.
	hooks map[string]bool
	// startedAt is when this daemon started the primary for the PENDING that
	// began with startedFor.
	startedAt  time.Time
	startedFor uint64
	// tampered is why the supervisor could not be trusted at the last try to
	// connect, network what the last look showed to be wrong with the network;
	// empty if nothing.
	tampered, network string
	// since is the time from which on a full look shows what the round must see.
	since    time.Time
	failures int
}

func (w *worker) stopTimerLocked() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// work runs rounds until the sandbox is clean.
func (l *Loop) work(w *worker) {
	for {
		l.mu.Lock()
		if !w.dirty || l.ctx.Err() != nil {
			w.running = false
			if sb, living := l.Ledger.Sandbox(w.id); !living || sb.Over() {
				delete(l.workers, w.id)
			}
			l.mu.Unlock()
			return
		}
		w.dirty = false
		dirtyAt, ctx := w.dirtyAt, l.ctx
		l.mu.Unlock()

		wake := l.round(ctx, w, dirtyAt)
		l.mu.Lock()
		if !wake.IsZero() && !w.dirty && ctx.Err() == nil {
			w.timer = time.AfterFunc(max(wake.Sub(l.Now()), time.Millisecond), func() { l.Enqueue(w.id) })
		}
		l.mu.Unlock()
	}
}

// Condition says how the daemon stands to one sandbox.
type Condition struct {
	// Recovering: the daemon has started and has not yet looked at the sandbox.
	Recovering bool
	// Degraded says why the sandbox cannot be seen or reached; empty if it can.
	Degraded string
}

// Condition returns what is known apart from the record.
func (l *Loop) Condition(sb ledger.Sandbox) Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	var c Condition
	w := l.workers[sb.ID]
	if w != nil {
		c.Degraded = w.trouble
	}
	atRest := sb.State == machine.Stopped || sb.State == machine.Failed || sb.Inherited == 0
	c.Recovering = !atRest && sb.LastSequence == sb.Inherited && (w == nil || w.looked.IsZero()) && !l.Links.Connected(sb.ID)
	if c.Degraded == "" {
		c.Degraded = machine.ServiceTrouble(sb.Record, machine.ServiceRules(sb.Spec))
	}
	if c.Degraded == "" && l.engine.Err != nil && sb.State != machine.Failed {
		c.Degraded = l.engine.Err.Error()
	}
	return c
}

// Health returns what was last heard of the engine.
func (l *Loop) Health() EngineHealth {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.engine
}
