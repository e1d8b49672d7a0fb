package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

	// opts has the parameters; the dependencies in it are the fields above.
	opts Options

	// slots bounds the workers that call the engine at the same time. stops bounds those
	// that wait for containers to end.
	slots, stops chan struct{}
	// marking has an element while a goroutine adopts or marks an engine.
	marking chan struct{}
	// comparing has an element for each workspace that is being compared.
	comparing chan struct{}
	// workers runs the rounds. wg has the loop's other goroutines.
	workers *workers
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
	// firstLook is closed by lookedOnce at the end of the first full look.
	firstLook  chan struct{}
	lookedOnce sync.Once
	// dispatched, cleanedUp and keptAfter say whose turn it is. Only the resync uses them.
	dispatched, cleanedUp, keptAfter rota

	// mu guards the fields below. It is never held across a call.
	mu  sync.Mutex
	ctx context.Context // nil until Run; cancelled when Run ends
	// sandboxes has what the loop knows of living sandboxes besides their records.
	sandboxes map[string]*sandboxWork
	// agentsAtWork has what it knows of agents.
	agentsAtWork map[string]*agentWork
	// stocks has what it knows of pools.
	stocks map[string]*stock
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

// Poke schedules a resync.
func (l *Loop) Poke() { poke(l.poked) }

// Enqueue schedules a look at the sandbox. It never blocks. Before Run it does nothing,
// because Run enqueues every sandbox.
func (l *Loop) Enqueue(sandboxID string) { l.workers.Enqueue(sandboxKey(sandboxID)) }

// Interrupt is Enqueue for a changed want. It also cancels a pull or a wait of the
// worker.
func (l *Loop) Interrupt(sandboxID string) { l.workers.Interrupt(sandboxKey(sandboxID)) }

func sandboxKey(id string) workKey { return workKey{Kind: forSandbox, ID: id} }

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
	// image is that of the primary of a sandbox that was made ahead, as it was when it was handed out.
	image runtime.Image
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
	// configuredFor is the PENDING in which this daemon has told the supervisor whose its sandbox is.
	configuredFor uint64
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
	// ran are the execs that were recorded as running when the last look at the engine began.
	ran map[string]machine.Exec
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

// stock is what the loop knows of a pool.
type stock struct {
	// failures counts those in a row that have failed, trouble says why, and due is when another one is made.
	failures int
	trouble  string
	due      time.Time
	// rests is since when the next one is put off because of requests.
	rests time.Time
	// asked is the sandbox that was asked for last, until it is ready, fails or somebody has it.
	asked string
	// misfit says why the last request that looked at a ready one could not get it, which may be over from
	// misfitUntil on.
	misfit      string
	misfitUntil time.Time
	// unfit are those that were READY and degraded at the last look.
	unfit map[string]bool
	// check means that the images of what is ready are looked at.
	check bool
	// scarce means that this machine has too little memory for it. scarcities counts how often that was so in
	// a row, and spare is until when nothing is made after the last time.
	scarce     bool
	scarcities int
	spare      time.Time
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

// EnqueueAgent schedules a round of the agent. It never blocks.
func (l *Loop) EnqueueAgent(agentID string) { l.workers.Enqueue(agentKey(agentID)) }

func agentKey(id string) workKey { return workKey{Kind: forAgent, ID: id} }

// agentWork is the loop's state of one agent. Loop.mu guards trouble and left; the rest is
// used by the goroutine of the round only.
type agentWork struct {
	// told is the newest event of the agent for which its kin was enqueued.
	told uint64
	// trouble says why the agent does not get on. It is empty if it does.
	trouble  string
	failures int
	// ensured and ensuredAt are those of agent.Seen.
	ensured   int
	ensuredAt time.Time
	// watched is the exec whose end enqueues the agent. drained is the one that its
	// supervisor drains.
	watched, drained string
	// watchedOn tells of that end.
	watchedOn <-chan struct{}
	// described is what the agent's file on disk says.
	described description
	// left is the work in its own sandbox, once it is over.
	left workLeft
}

// description is what changes of the file that describes an agent.
type description struct {
	incarnations    uint32
	parent, sandbox string
}

// shown is what agents without an incarnation see of their sandbox. It may be connected for
// several rounds before it is READY.
type shown struct {
	pending          uint64
	want             machine.Want
	connected, ready bool
}

// agentWork returns the state of an agent.
func (l *Loop) agentWork(id string) *agentWork {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.agentsAtWork[id]
	if w == nil {
		w = new(agentWork)
		l.agentsAtWork[id] = w
	}
	return w
}

func (l *Loop) forgetAgent(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.agentsAtWork, id)
}

func (l *Loop) setAgentTrouble(w *agentWork, trouble string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.trouble = trouble
}

// AgentTrouble says why an agent does not get on. It is empty if it does.
func (l *Loop) AgentTrouble(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.agentsAtWork[id]; w != nil {
		return w.trouble
	}
	return ""
}

// AgentReady returns the result of the readiness probe of a running incarnation. It is nil
// if it has none.
func (l *Loop) AgentReady(execID string) *bool { return l.agents.Ready(execID) }

// workLeft is what is known about work in the own sandbox of an agent that is over. It is not
// stored: the next daemon compares once more.
type workLeft struct {
	comparing bool
	// advanced is that of Review when the workspace was compared, and used the last use of the
	// sandbox. again is when to compare it again; zero means that it was not compared.
	advanced string
	used     time.Time
	again    time.Time
	// still means that the sandbox does not run, so that its work cannot change before its next
	// use. failures is how often in a row it could not be compared.
	still    bool
	failures int
	// why says why the sandbox is kept; empty if there is no reason.
	why string
}

// perResync bounds the agents that a phase of a resync has looked at, of those for which nothing
// is known to have happened. So a resync costs the same however many wait.
const perResync = 100

// rota says whose turn it is in the next resync.
type rota struct {
	// after is the position of the agent that was looked at last.
	after uint64
}

// next returns as many of the agents, which are sorted by age, as a resync looks at: those
// that follow the ones of the last time.
func (r *rota) next(agents []ledger.Place) []ledger.Place {
	if len(agents) <= perResync {
		return agents
	}
	at, _ := slices.BinarySearchFunc(agents, r.after+1, func(a ledger.Place, p uint64) int { return cmp.Compare(a.Position, p) })
	turn := slices.Concat(agents[at:], agents[:at])[:perResync]
	r.after = turn[perResync-1].Position
	return turn
}

// enqueueEach enqueues some agents, and returns their number.
func enqueueEach(l *Loop, agents []ledger.Agent) (n int) {
	for _, a := range agents {
		l.EnqueueAgent(a.ID)
	}
	return len(agents)
}

// serviceWork is the worker's state of one service. Loop.mu guards it.
type serviceWork struct {
	// started is the number of the last start that this daemon has executed.
	started uint32
	// startedAt is the time of that start.
	startedAt time.Time
	// failure is the error of making or starting it. The next event reports it.
	failure *machine.ServiceFailure
	// cancel cancels making it in the background. made is closed when that has ended.
	// Both are nil if it is not being made.
	cancel context.CancelFunc
	made   chan struct{}
}

// service returns the state of a service. The caller holds Loop.mu.
func (w *sandboxWork) service(name string) *serviceWork {
	s := w.services[name]
	if s == nil {
		s = new(serviceWork)
		if w.services == nil {
			w.services = make(map[string]*serviceWork)
		}
		w.services[name] = s
	}
	return s
}

// recall adds the worker's state of its services to the observation.
func (l *Loop) recall(w *sandboxWork, o *machine.Observation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range w.services {
		if o.Services == nil {
			o.Services = make(map[string]machine.ServiceSeen)
		}
		seen := o.Services[name]
		seen.Started, seen.StartedAt, seen.Failure, seen.Making = s.started, s.startedAt, s.failure, s.cancel != nil
		o.Services[name] = seen
	}
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

// orphan is an object of the engine for which Orphaned is true.
type orphan struct {
	runtime.Identity
	id, name string
	// kind is "container", "network" or "volume".
	kind  string
	since time.Time
	// tried means that a removal has failed and was logged. Only the removing goroutine
	// uses it.
	tried bool
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

func (l *Loop) hasLivingAgent(sandboxID string) bool {
	return slices.ContainsFunc(l.ledger.AgentsIn(sandboxID), func(a ledger.Agent) bool { return !a.Over() })
}

func (l *Loop) setTrouble(w *sandboxWork, trouble string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.trouble = trouble
}

// progressEvery bounds the number of progress events of a pull. During a long pull they
// get rarer: each comes after the pull has taken a tenth longer.
const progressEvery = 2 * time.Second

// announce reports the current step to watchers. Losing it is harmless.
func (l *Loop) announce(ctx context.Context, sb ledger.Sandbox, phase, reason string) {
	l.emitPhase(ctx, sb, &agboxv1.SandboxPhaseDetails{Phase: phase, Reason: reason})
}

func (l *Loop) emitPhase(ctx context.Context, sb ledger.Sandbox, details *agboxv1.SandboxPhaseDetails) {
	_, err := l.ledger.Emit(ctx, sb.Record, &agboxv1.SandboxEvent{
		EventType: agboxv1.EventType_SANDBOX_PREPARING,
		Details:   &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: details},
	})
	if err != nil {
		l.log.Debug("progress could not be recorded", "sandbox_id", sb.ID, "error", err)
	}
}

func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
