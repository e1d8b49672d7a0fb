package incarnations

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

// Execs runs commands in sandboxes.
type Execs interface {
	// Create accepts an exec. started is closed once it was started or failed to start.
	Create(ctx context.Context, req *agboxv1.CreateExecRequest) (started <-chan struct{}, err error)
	// Cancel ends a running exec, with SIGKILL after grace.
	Cancel(ctx context.Context, sandboxID, execID string, grace time.Duration) error
	// Reap is Cancel, and the end of the exec says that it was this.
	Reap(ctx context.Context, sandboxID, execID string, grace time.Duration) error
	// Drain lets a running exec of an agent save its work. It is errdefs.ErrNotImplemented
	// for a supervisor that is too old.
	Drain(ctx context.Context, sandboxID string, req *guestv1.DrainRequest) error
	// Look says how files in a sandbox and its limits are now, as a user may know it. An empty
	// user is the default one.
	Look(ctx context.Context, sandboxID, user string, paths []string) (journal.Seen, error)
	// Pause tells a running exec of an agent that the agent is paused, or is not any more. It is
	// errdefs.ErrNotImplemented for a supervisor that is too old.
	Pause(ctx context.Context, sandboxID string, req *guestv1.PauseRequest) error
	// Allot tells a running exec of an agent what the children of the agent have of its budget.
	// It is errdefs.ErrNotImplemented for a supervisor that is too old.
	Allot(ctx context.Context, sandboxID string, req *guestv1.AllotRequest) error
	// Answer answers a request of a running exec of an agent.
	Answer(ctx context.Context, sandboxID string, req *guestv1.AnswerRequest) error
}

// Runner runs incarnations. It has no goroutines: news come in those of the links, and all
// else is called by the rounds of agents, of which each agent has one at a time.
type Runner struct {
	execs   Execs
	ledger  *ledger.Ledger
	paths   paths.Install
	enqueue func(agentID string)
	now     func() time.Time
	files   Files
	log     *slog.Logger
	desk    *desk
	holds   *holds
	// checkpoints are those of all agents.
	checkpoints *retention.Checkpoints
	// admit checks the spec of a child, see AdmitChildren.
	admit Admit
	// sandboxes is what SandboxesOfChildren sets.
	sandboxes ChildSandboxes
	// childLifetime is what LifetimeOfChildren sets.
	childLifetime agboxv1.AgentLifetime
}

// New makes a Runner. enqueue schedules a round of an agent, about whose incarnation there
// are news; it must not block.
func New(execs Execs, files Files, book *ledger.Ledger, install paths.Install, enqueue func(agentID string), now func() time.Time, log *slog.Logger) *Runner {
	return &Runner{
		execs: execs, files: files, ledger: book, paths: install, enqueue: enqueue, now: now, log: log, desk: newDesk(), holds: newHolds(now()),
		checkpoints: retention.NewCheckpoints(install),
	}
}

// Files moves files into sandboxes.
type Files interface {
	// Transfer starts a transfer. done must be called at its end.
	Transfer(ctx context.Context, sandboxID string, req *guestv1.TransferRequest) (t *guest.Transfer, done func(), err error)
}

// Admit checks the spec of an agent that is to run in a sandbox. The error has all problems.
type Admit func(sandbox *agboxv1.CreateSpec, a *agboxv1.AgentSpec) (*agboxv1.AgentSpec, error)

// AdmitChildren sets the check of the specs of children. It must be called before the first
// request.
func (r *Runner) AdmitChildren(admit Admit) { r.admit = admit }

// LifetimeOfChildren sets the lifetime of children for which neither the request nor their
// stack says one. It must be called before the first request.
func (r *Runner) LifetimeOfChildren(lifetime agboxv1.AgentLifetime) { r.childLifetime = lifetime }

// ChildSandboxes accepts the sandboxes of children that have one of their own.
type ChildSandboxes struct {
	// Admit checks the spec of a sandbox that was derived from another one, by the rules for
	// sources and the operator's policy as they are now. The error has all problems.
	Admit func(derived *agboxv1.CreateSpec) error
	// Enqueue schedules a round of a sandbox. It must not block.
	Enqueue func(sandboxID string)
}

// SandboxesOfChildren sets what accepts them. It must be called before the first request.
func (r *Runner) SandboxesOfChildren(s ChildSandboxes) { r.sandboxes = s }

// desk has what is known about running incarnations besides the ledger. Nothing of it is
// stored: the supervisors tell it again over each new link, and the journals are files.
type desk struct {
	// mu guards the fields below. It is never held across I/O.
	mu sync.Mutex
	// known has what is known about incarnations, by exec id.
	known map[string]known
	// pictures has what was seen before the newest pause, by agent id.
	pictures map[string]pictured
}

// known is what is known about an incarnation.
type known struct {
	// link is the one over which its supervisor tells of it. All but read came over this one, and
	// another one begins anew. It is nil if nothing was told.
	link *links.Link
	// news are the newest, and at is when they came. Both are zero if nothing was told.
	news *guestv1.IncarnationNews
	at   time.Time
	// open are the requests that were not answered, by their numbers.
	open map[uint64]request
	// pause and children are what the supervisor was told since: the mark of a pause, and the budget
	// of children. They are nil if it was not.
	pause    *uint64
	children *childrenBudget
	// read is how far the journal was read; nil if it was not.
	read *place
}

// place is a place in a journal.
type place struct {
	journal.Tail
	// tried is the number of rows that the supervisor had told of when the journal was read
	// last. The file may have fewer, because root in the sandbox can change it.
	tried uint64
}

func newDesk() *desk {
	return &desk{known: make(map[string]known), pictures: make(map[string]pictured)}
}

// of returns what is known about an incarnation.
func (d *desk) of(execID string) known {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[execID]
}

// childrenBudget is what the children of an agent have of its budget, and the part of that
// which is spent.
type childrenBudget struct{ have, spent gate.Amount }

// pictured is what journals show of the time before a pause, which began with that event.
type pictured struct {
	awayAt uint64
	seen   *journal.Seen // nil if they show nothing
}

// holds has which clients are connected that hold an agent. Who holds which agent is in the
// ledger; a daemon that starts waits for all clients anew.
type holds struct {
	// since is when the daemon began to wait.
	since time.Time

	// mu guards the fields below. It is never held across I/O.
	mu sync.Mutex
	// connected counts the connections of a client that holds an agent. lost has when the last
	// one ended, until the hold ends.
	connected map[heldBy]int
	lost      map[heldBy]time.Time
}

type heldBy struct{ agentID, holder string }

func newHolds(now time.Time) *holds {
	return &holds{since: now, connected: make(map[heldBy]int), lost: make(map[heldBy]time.Time)}
}
