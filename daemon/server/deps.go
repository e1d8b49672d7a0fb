package server

import (
	"context"
	"io"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/guest"
)

// Engine is the engine as the API needs it. Only the loop changes sandboxes.
type Engine interface {
	// Inventory lists all objects with the install's label.
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	// ContainerUsage measures one container.
	ContainerUsage(ctx context.Context, id string) (runtime.Usage, error)
	// EnsureImage returns the local image, or pulls it. progress may be nil.
	EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error)
	// ListImages lists the local images.
	ListImages(ctx context.Context) ([]runtime.ListedImage, error)
	// BuildImage builds an image from a tar stream, and passes on what the build prints.
	BuildImage(ctx context.Context, opts runtime.BuildOptions, context io.Reader, output func(string) error) (id string, err error)
}

// Loop is the loop as the API needs it.
type Loop interface {
	// Health returns the last known health of the engine.
	Health() reconcile.EngineHealth
	// Probe reports whether the engine is usable now.
	Probe(ctx context.Context) error
	// AdoptEngine makes the engine that answers that of the install.
	AdoptEngine(ctx context.Context) error
	// Enqueue schedules a look at a sandbox.
	Enqueue(sandboxID string)
	// Interrupt is Enqueue for a request that must not wait for the current step.
	Interrupt(sandboxID string)
	// EnqueueAgent schedules a look at an agent.
	EnqueueAgent(agentID string)
	// ReapAgents schedules a look at all agents and removes files of ended ones. It returns
	// how many of both there are.
	ReapAgents() (agents, files int)
	// AgentTrouble says why an agent does not get on. It is empty if it does.
	AgentTrouble(agentID string) string
	// AgentReady returns the result of the readiness probe of a running incarnation. It is
	// nil if it has none.
	AgentReady(execID string) *bool
	// Poke schedules a resync.
	Poke()
	// Unstock asks for the removal of a sandbox that was made ahead, unless somebody has it by now.
	Unstock(ctx context.Context, sandboxID string) error
	// EnqueuePool schedules a look at the pool with an id.
	EnqueuePool(id string)
	// PoolTrouble says why a pool, of which some are ready, does not get on. It is empty if it does.
	PoolTrouble(p ledger.Pool, ready int) string
	// Misfit notes why a request that seems to fit the pool with an id gets nothing of it.
	Misfit(pool, why string)
	// PoolWants returns how many sandboxes a pool keeps ready now, for as long as it has no trouble.
	PoolWants(ledger.Pool) int
	// Fit reports whether a sandbox that was made ahead can be handed out: it runs, is linked, and is
	// what would be made now.
	Fit(ctx context.Context, sb ledger.Sandbox, want *agboxv1.CreateSpec) bool
	// Condition returns what is known about a sandbox besides its record.
	Condition(sb ledger.Sandbox) reconcile.Condition
	// Containers returns the sandbox's containers as they were last seen.
	Containers(ctx context.Context, sb ledger.Sandbox) []runtime.Container
	// Uncovered returns what in a sandbox's writable mounts came after it was made and would
	// be covered, and which mounts are too large to find everything.
	Uncovered(ctx context.Context, sb ledger.Sandbox) (found, notSearched []string, err error)
	// Archive returns a file or folder of a sandbox's primary, which need not run, as a tar
	// stream.
	Archive(ctx context.Context, sb ledger.Sandbox, path string) (io.ReadCloser, error)
	// BuildImages makes the images that a spec builds, and passes on output and ids.
	BuildImages(ctx context.Context, spec *agboxv1.CreateSpec, tell func(service, line, id string) error) error
	// RemoveImage removes a name of an image, with onlyUnused only of a built one that nothing
	// uses.
	RemoveImage(ctx context.Context, ref string, onlyUnused bool) error
	// ServiceLogs writes the output of a service until ctx ends.
	ServiceLogs(ctx context.Context, sb ledger.Sandbox, service string, opts runtime.LogOptions, stdout, stderr io.Writer) error
	// ExecInService runs a command in the container of a service, and returns its exit code.
	ExecInService(ctx context.Context, sb ledger.Sandbox, service string, command runtime.ContainerCommand, streams runtime.ContainerStreams) (exitCode int, err error)
}

// Agents knows the incarnations of agents.
type Agents interface {
	// Show adds what the supervisor of a running incarnation has told about it.
	Show(a ledger.Agent, view *agboxv1.Agent)
	// Journal calls each with the rows of the journal of an exec after a place and a row, and
	// with their numbers, until each fails. It returns the place after them, and the error of
	// each. A journal that does not exist has no rows.
	Journal(sandboxID, execID string, from journal.Tail, after uint64, each func(number uint64, row []byte) error) (journal.Tail, error)
	// Hold says that a client is connected that holds an agent. release must be called at the
	// end of the connection.
	Hold(agentID, holder string) (release func())
	// LastBeat returns its newest beat, or the zero time. It may read a file.
	LastBeat(a ledger.Agent) time.Time
}

// Room counts what sandboxes have in their folders on the host.
type Room interface {
	// Known returns a count of the last seconds; false if there is none.
	Known(ctx context.Context, sandboxID string) (retention.Use, bool)
}

// Execs runs commands.
type Execs interface {
	// Create accepts an exec. started is closed once it was started or failed to start.
	Create(ctx context.Context, req *agboxv1.CreateExecRequest) (started <-chan struct{}, err error)
	// Cancel ends a running exec, with SIGKILL after grace.
	Cancel(ctx context.Context, sandboxID, execID string, grace time.Duration) error
	// Signal sends a signal to the process group of a running exec.
	Signal(ctx context.Context, sandboxID, execID string, signal int32) error
	// Processes lists the processes in the primary of a sandbox, without the names of their
	// execs.
	Processes(ctx context.Context, sandboxID string) (*agboxv1.ListProcessesResponse, error)
	// WriteStdin writes input of a writer from offset on. written is the total of its
	// bytes. open is false once the exec no longer accepts input.
	WriteStdin(ctx context.Context, sandboxID, execID, writer string, offset uint64, data []byte, eof bool) (written uint64, open bool, err error)
	// Resize sets the window size of an exec's terminal.
	Resize(ctx context.Context, sandboxID, execID string, rows, columns uint32) error
}

// Files makes file calls to sandboxes.
type Files interface {
	// Call makes a small file call.
	Call(ctx context.Context, sandboxID string, op guest.FileOp, req *guestv1.FileRequest) (*guestv1.FileReply, error)
	// Transfer starts a transfer. done must be called at its end.
	Transfer(ctx context.Context, sandboxID string, req *guestv1.TransferRequest) (t *guest.Transfer, done func(), err error)
}

// Examiner implements Doctor.
type Examiner interface {
	// Examine reports problems, and repairs what it can if fix is set.
	Examine(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error)
}
