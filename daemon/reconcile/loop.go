// Package reconcile has the one loop that changes sandboxes. It loads a record, observes,
// asks machine.Next, and executes the step. Start-up, engine events, requests, timers and
// the periodic resync all do the same: Enqueue.
//
// It is the only caller of the engine's mutating verbs. A sandbox has at most one worker
// at a time. The Loop owns the workers, and Run waits for them.
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

// Options are the dependencies and parameters of a Loop.
type Options struct {
	Engine Engine
	Links  Links
	Execs  Execs
	Files  Files
	Ledger *ledger.Ledger
	Paths  paths.Install
	// Host checks host paths that sandboxes mount or copy.
	Host hostfiles.Checker
	// InstallID is in the labels of the objects of this install.
	InstallID string
	// Supervisor is the host path of the supervisor binary for new containers.
	Supervisor string
	// HandedOver means that the previous daemon was upgraded and handed its work over.
	HandedOver bool
	// PendingRecovery is the policy for sandboxes that an earlier daemon was making.
	PendingRecovery machine.PendingRecovery
	// Resync is the maximum pause between two full looks at the engine.
	Resync time.Duration
	// Revival is the policy for sandboxes whose spec has none.
	Revival agboxv1.RevivalPolicy
	// ReadyWithin is how long a supervisor may take to answer after the start.
	ReadyWithin time.Duration
	// OrphanGrace is how long an orphan must have been seen before it is removed. 0 means
	// never.
	OrphanGrace time.Duration
	// MaxExecLog and MaxSandboxLog limit the bytes of output that new containers keep,
	// per stream of an exec and for all execs together. 0 means no limit.
	MaxExecLog    uint64
	MaxSandboxLog uint64
	// MemoryDefault limits the memory of new containers whose spec does not.
	MemoryDefault MemoryDefault
	Now           func() time.Time
	Log           *slog.Logger
}

// Loop reconciles all sandboxes of an install.
type Loop struct {
	engine Engine
	links  Links
	execs  Execs
	files  Files
	ledger *ledger.Ledger
	paths  paths.Install
	host   hostfiles.Checker
	now    func() time.Time
	log    *slog.Logger

	// The fields up to memoryDefault are as in Options.

	installID, supervisor     string
	handedOver                bool
	pendingRecovery           machine.PendingRecovery
	revival                   agboxv1.RevivalPolicy
	resyncEvery               time.Duration
	readyWithin               time.Duration
	orphanGrace               time.Duration
	maxExecLog, maxSandboxLog uint64
	memoryDefault             MemoryDefault

	// slots bounds the workers that call the engine at the same time. stops bounds those
	// that wait for containers to end.
	slots, stops chan struct{}
	wg           sync.WaitGroup
	// orphans has the orphans of the newest full look by their engine ids. Only the
	// looking goroutine uses it. sweeping is true while some are being removed.
	orphans  map[string]*orphan
	sweeping atomic.Bool

	// mu guards the fields below. It is never held across a call.
	mu      sync.Mutex
	ctx     context.Context // nil until Run; cancelled when Run ends
	workers map[string]*worker
	// health is the last known health of the engine.
	health EngineHealth
	// outage is the newest outage of the engine. answeredAt is its last answer.
	outage     outage
	answeredAt time.Time
	// askInfo: call Info again, because the engine may have been replaced.
	askInfo bool
	// inventory is the result of the newest full look. inventoryAt is when that was
	// begun.
	inventory   map[string]runtime.Inventory
	inventoryAt time.Time
	// doubtful has the engine ids of containers for which an event has reported a change
	// that the engine's lists may not show yet.
	doubtful map[string]bool
}

// EngineHealth is the last known health of the engine.
type EngineHealth struct {
	// Known is false until the engine was queried for the first time.
	Known bool
	Info  runtime.EngineInfo
	// Err says why the engine does not answer. It is nil while it does.
	Err error
}

// engineSlots is the maximum number of concurrent verbs. The engine serializes most of
// them, so more would only lengthen its queue.
const engineSlots = 8

// stopSlots is the maximum number of containers in their stop grace at the same time.
// That is mostly waiting, and must not block verbs of other sandboxes.
const stopSlots = 64

// New makes a Loop. It does nothing before Run.
func New(o Options) *Loop {
	return &Loop{
		engine: o.Engine, links: o.Links, execs: o.Execs, files: o.Files, ledger: o.Ledger,
		paths: o.Paths, host: o.Host, now: o.Now, log: o.Log,

		installID: o.InstallID, supervisor: o.Supervisor, handedOver: o.HandedOver,
		pendingRecovery: o.PendingRecovery, revival: o.Revival,
		resyncEvery: o.Resync, readyWithin: o.ReadyWithin, orphanGrace: o.OrphanGrace,
		maxExecLog: o.MaxExecLog, maxSandboxLog: o.MaxSandboxLog,
		memoryDefault: o.MemoryDefault,

		slots:   make(chan struct{}, engineSlots),
		stops:   make(chan struct{}, stopSlots),
		workers: make(map[string]*worker),
	}
}

// Run reconciles until ctx ends, then waits for the workers. Its end does not change any
// sandbox.
func (l *Loop) Run(ctx context.Context) {
	l.mu.Lock()
	l.ctx = ctx
	l.mu.Unlock()
	for _, sb := range l.ledger.Sandboxes() {
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

// Enqueue schedules a look at the sandbox. It never blocks.
func (l *Loop) Enqueue(sandboxID string) { l.enqueue(sandboxID, false) }

// Interrupt is Enqueue for a changed want. It also cancels a pull or a wait of the
// worker.
func (l *Loop) Interrupt(sandboxID string) { l.enqueue(sandboxID, true) }

func (l *Loop) enqueue(sandboxID string, interrupt bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil || l.ctx.Err() != nil {
		return // before Run everything is enqueued anyway, after it nothing is
	}
	w := l.workers[sandboxID]
	if w == nil {
		w = &worker{id: sandboxID}
		l.workers[sandboxID] = w
	}
	w.dirty, w.dirtyAt = true, l.now()
	w.stopTimerLocked()
	if interrupt && w.cancelStep != nil {
		w.cancelStep()
	}
	if !w.running {
		w.running = true
		l.wg.Go(func() { l.work(w) })
	}
}

// worker is the loop's state of one sandbox. Loop.mu guards its fields, except those that
// only the running worker goroutine uses.
type worker struct {
	id      string
	dirty   bool
	dirtyAt time.Time
	running bool
	// cancelStep cancels the interruptible part of the current step.
	cancelStep context.CancelFunc
	// timer enqueues the sandbox at the time that its last round returned.
	timer *time.Timer
	// looked is when the engine last showed the sandbox, or zero.
	looked time.Time
	// trouble says why the sandbox is degraded. It is empty if it is not.
	trouble string
	// seen is the last known state in the engine, to detect a change in a resync.
	seen digest

	// services has the state of the services by name.
	services map[string]*serviceWork

	// Used by the goroutine only:

	// hooks are the execs whose end is or was watched.
	hooks map[string]bool
	// startedAt is when this daemon started the primary for the PENDING that began with
	// startedFor.
	startedAt  time.Time
	startedFor uint64
	// unlinked says why the last connect failed if a retry is useless, else nil.
	unlinked error
	// network describes a problem of the network at the last look. It is empty if there
	// is none.
	network string
	// since is the time after which a full look must have begun to be used in this round.
	since    time.Time
	failures int
}

func (w *worker) stopTimerLocked() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// work runs rounds until no request for a look is left.
func (l *Loop) work(w *worker) {
	for {
		l.mu.Lock()
		if !w.dirty || l.ctx.Err() != nil {
			w.running = false
			sb, living := l.ledger.Sandbox(w.id)
			over := !living || sb.Over()
			if over {
				delete(l.workers, w.id)
			}
			l.mu.Unlock()
			if over {
				l.links.Drop(w.id)
			}
			return
		}
		w.dirty = false
		dirtyAt, ctx := w.dirtyAt, l.ctx
		l.mu.Unlock()

		wake := l.round(ctx, w, dirtyAt)
		l.mu.Lock()
		if !wake.IsZero() && !w.dirty && ctx.Err() == nil {
			w.timer = time.AfterFunc(max(wake.Sub(l.now()), time.Millisecond), func() { l.Enqueue(w.id) })
		}
		l.mu.Unlock()
	}
}

// Condition is the daemon's view of one sandbox besides its record.
type Condition struct {
	// Recovering: the daemon has started and has not observed the sandbox since.
	Recovering bool
	// Degraded says why the sandbox cannot be observed or reached. It is empty if it can.
	Degraded string
}

// Condition returns the condition of a sandbox.
func (l *Loop) Condition(sb ledger.Sandbox) Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	var c Condition
	w := l.workers[sb.ID]
	if w != nil {
		c.Degraded = w.trouble
	}
	atRest := sb.State == machine.Stopped || sb.State == machine.Failed || sb.Inherited == 0
	c.Recovering = !atRest && sb.LastSequence == sb.Inherited && (w == nil || w.looked.IsZero()) && !l.links.Connected(sb.ID)
	if c.Degraded == "" {
		c.Degraded = machine.ServiceTrouble(sb.Record, machine.ServiceRules(sb.Spec))
	}
	if c.Degraded == "" && l.health.Err != nil && sb.State != machine.Failed {
		c.Degraded = l.health.Err.Error()
	}
	return c
}

// Health returns the last known health of the engine.
func (l *Loop) Health() EngineHealth {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health
}
