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
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/daemon/build"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Options are the dependencies and parameters of a Loop.
type Options struct {
	Engine Engine
	Links  Links
	Execs  Execs
	Files  Files
	Room   Room
	Fence  Fence
	Agents Agents
	Review Review
	Ledger *ledger.Ledger
	Paths  paths.Install
	// Host checks host paths that sandboxes mount or copy.
	Host hostfiles.Checker
	// InstallID is in the labels of the objects of this install.
	InstallID string
	// Identities keeps the identity of the engine. EngineAddress is its address, for
	// messages. EngineIdentified is called each time the engine was seen to be the install's
	// after it may have been replaced; it may be nil.
	Identities       Identities
	EngineAddress    string
	EngineIdentified func()
	// Supervisor is the host path of the supervisor binary for new containers.
	Supervisor string
	// InstallSupervisor installs the newest supervisor binary and returns its host path,
	// which is Supervisor if that has the same content.
	InstallSupervisor func() (path string, err error)
	// Unprivileged means that the daemon's user is not root: files of root in the folders
	// of a sandbox must be removed by a container.
	Unprivileged bool
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
	// MaxFolderFiles limits the files that the folders of a new sandbox on the host have,
	// besides those of recorded execs. 0 means no limit.
	MaxFolderFiles uint64
	// MemoryDefault limits the memory of new containers whose spec does not.
	MemoryDefault MemoryDefault
	// FenceMode says which sandboxes are kept from the addresses of the host.
	FenceMode FenceMode
	Now       func() time.Time
	Log       *slog.Logger
}

// Loop reconciles all sandboxes of an install.
type Loop struct {
	engine Engine
	links  Links
	execs  Execs
	files  Files
	room   Room
	fence  Fence
	agents Agents
	review Review
	ledger *ledger.Ledger
	paths  paths.Install
	host   hostfiles.Checker
	builds *build.Builder
	// imagesInUse is locked for reading from the look for an image to the container of it.
	// Held across I/O: an image that was found must be there when its container is made.
	imagesInUse sync.RWMutex
	now         func() time.Time
	log         *slog.Logger

	// The fields up to fenceMode are as in Options.

	installID, supervisor     string
	identities                Identities
	engineAddress             string
	engineIdentified          func()
	installSupervisor         func() (path string, err error)
	unprivileged, handedOver  bool
	pendingRecovery           machine.PendingRecovery
	revival                   agboxv1.RevivalPolicy
	resyncEvery               time.Duration
	readyWithin               time.Duration
	orphanGrace               time.Duration
	maxExecLog, maxSandboxLog uint64
	maxFolderFiles            uint64
	memoryDefault             MemoryDefault
	fenceMode                 FenceMode

	// slots bounds the workers that call the engine at the same time. stops bounds those
	// that wait for containers to end.
	slots, stops chan struct{}
	// marking has an element while a goroutine adopts or marks an engine.
	marking chan struct{}
	// comparing has an element for each workspace that is being compared.
	comparing chan struct{}
	// workers runs the rounds. wg has the loop's other goroutines.
	workers *pool
	wg      sync.WaitGroup
	// poked asks for a resync.
	poked chan struct{}
	// phases are the phases of a resync. They do not change after New.
	phases []phase
	// orphans has the orphans of the newest full look by their engine ids. Only the
	// looking goroutine uses it. sweeping is true while some are being removed.
	orphans  map[string]*orphan
	sweeping atomic.Bool
	// strayMetasGone means that no agent that does not exist has a file any more.
	strayMetasGone atomic.Bool
	// dispatched, cleanedUp and keptAfter say whose turn it is. Only the resync uses them.
	dispatched, cleanedUp, keptAfter rota

	// mu guards the fields below. It is never held across a call.
	mu  sync.Mutex
	ctx context.Context // nil until Run; cancelled when Run ends
	// sandboxes has what the loop knows of living sandboxes besides their records.
	sandboxes map[string]*sandboxWork
	// agentsAtWork has what it knows of agents.
	agentsAtWork map[string]*agentWork
	// health is the last known health of the engine.
	health EngineHealth
	// outage is the newest outage of the engine. answeredAt is its last answer.
	outage     outage
	answeredAt time.Time
	// same: the engine was seen to be the install's since it may last have been replaced.
	// doubts counts how often it may have been.
	same   bool
	doubts uint64
	// askInfo: call Info again, because the engine may have been replaced.
	askInfo bool
	// inventory is the result of the newest full look. inventoryAt is when that was
	// begun.
	inventory   map[string]runtime.Inventory
	inventoryAt time.Time
	// unguarded says why the last rules against access to the host could not be made. It
	// is nil if they could.
	unguarded error
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
	l := &Loop{
		engine: o.Engine, links: o.Links, execs: o.Execs, files: o.Files, room: o.Room, fence: o.Fence, agents: o.Agents, review: o.Review, ledger: o.Ledger,
		paths: o.Paths, host: o.Host, builds: build.New(o.Engine, o.Paths.BuildContexts()), now: o.Now, log: o.Log,

		installID: o.InstallID, identities: o.Identities, engineAddress: o.EngineAddress, engineIdentified: o.EngineIdentified,
		supervisor: o.Supervisor, installSupervisor: o.InstallSupervisor, unprivileged: o.Unprivileged, handedOver: o.HandedOver,
		pendingRecovery: o.PendingRecovery, revival: o.Revival,
		resyncEvery: o.Resync, readyWithin: o.ReadyWithin, orphanGrace: o.OrphanGrace,
		maxExecLog: o.MaxExecLog, maxSandboxLog: o.MaxSandboxLog, maxFolderFiles: o.MaxFolderFiles,
		memoryDefault: o.MemoryDefault, fenceMode: o.FenceMode,

		slots:     make(chan struct{}, engineSlots),
		stops:     make(chan struct{}, stopSlots),
		marking:   make(chan struct{}, 1),
		comparing: make(chan struct{}, comparisons),
		sandboxes: make(map[string]*sandboxWork),
		poked:     make(chan struct{}, 1),

		agentsAtWork: make(map[string]*agentWork),
	}
	l.workers = newPool(o.Now, l.round)
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

// Enqueue schedules a look at the sandbox. It never blocks. Before Run it does nothing,
// because Run enqueues every sandbox.
func (l *Loop) Enqueue(sandboxID string) { l.workers.Enqueue(sandboxKey(sandboxID)) }

// Interrupt is Enqueue for a changed want. It also cancels a pull or a wait of the
// worker.
func (l *Loop) Interrupt(sandboxID string) { l.workers.Interrupt(sandboxKey(sandboxID)) }

func sandboxKey(id string) workKey { return workKey{Kind: forSandbox, ID: id} }

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
		return l.sandboxRound(ctx, turn)
	case forAgent:
		return l.agentRound(ctx, turn.ID)
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

// sandboxWork is the loop's state of one sandbox. Loop.mu guards its fields, except those
// that only the goroutine of the current round uses.
type sandboxWork struct {
	id string
	// looked is when the engine last showed the sandbox, or zero.
	looked time.Time
	// trouble says why the sandbox is degraded. It is empty if it is not.
	trouble string
	// seen is the last known state in the engine, to detect a change in a resync.
	seen digest

	// shown is what was shown to its agents after the last round.
	shown shown
	// services has the state of the services by name.
	services map[string]*serviceWork

	// Used by the goroutine of the round only:

	// turn is the current round.
	turn *workTurn
	// hooks are the execs whose end is or was watched.
	hooks map[string]bool
	// startedAt is when this daemon started the primary for the PENDING that began with
	// startedFor.
	startedAt  time.Time
	startedFor uint64
	// drainUntil is how long the current stop or removal waits for incarnations of agents, or
	// zero.
	drainUntil time.Time
	// unlinked says why the last connect failed if a retry is useless, else nil. unseen is since
	// when the socket of its supervisor is missing; zero if it is not.
	unlinked error
	unseen   time.Time
	// network describes a problem of the network at the last look. It is empty if there
	// is none.
	network string
	// since is the time after which a full look must have begun to be used in this round.
	since    time.Time
	failures int
}

// begin returns the state of a sandbox for a new round.
func (l *Loop) begin(turn *workTurn) *sandboxWork {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.sandboxes[turn.ID]
	if w == nil {
		w = &sandboxWork{id: turn.ID}
		l.sandboxes[turn.ID] = w
	}
	w.turn = turn
	if turn.Asked.After(w.since) { // not if an earlier round has changed something since
		w.since = turn.Asked
	}
	return w
}

// forget drops the state and the link of a sandbox that is over.
func (l *Loop) forget(sandboxID string) {
	l.mu.Lock()
	_, known := l.sandboxes[sandboxID]
	delete(l.sandboxes, sandboxID)
	l.mu.Unlock()
	if known {
		l.links.Drop(sandboxID)
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
	w := l.sandboxes[sb.ID]
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
