package reconcile

import (
	"context"
	"io"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// Engine is what the loop needs of a container engine. Every verb is idempotent
// and honours the deadline of its context; errors carry an errdefs class.
type Engine interface {
	// Ping asks whether the engine is there. That costs it little.
	Ping(ctx context.Context) error
	// Info asks the engine who it is.
	Info(ctx context.Context) (runtime.EngineInfo, error)
	// EnsureImage returns the local image, or pulls it. progress may be nil.
	EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error)
	// EnsureNetwork makes the network or finds the one that it made before.
	EnsureNetwork(ctx context.Context, spec runtime.NetworkSpec) (runtime.Network, error)
	// EnsureContainer makes the container or finds the one that it made before.
	EnsureContainer(ctx context.Context, spec runtime.ContainerSpec) (id string, err error)
	// StartContainer starts it; a running one is left as it is.
	StartContainer(ctx context.Context, id string) error
	// StopContainer stops it; a stopped or missing one is left as it is.
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	// RemoveContainer removes it with its anonymous volumes.
	RemoveContainer(ctx context.Context, id string) error
	// RemoveNetwork removes it, with what is still attached to it detached.
	RemoveNetwork(ctx context.Context, id string) error
	// EnsureVolume makes the volume or finds the one that it made before.
	EnsureVolume(ctx context.Context, spec runtime.VolumeSpec) error
	// RemoveVolume removes it; no container may have it mounted any more.
	RemoveVolume(ctx context.Context, name string) error
	// ContainerLogs writes the container's own output, as far as it is kept.
	ContainerLogs(ctx context.Context, id string, opts runtime.LogOptions, stdout, stderr io.Writer) error
	// Inventory lists everything that carries the install's label.
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	// SandboxInventory lists what carries the labels of one sandbox.
	SandboxInventory(ctx context.Context, installID, sandboxID string) (runtime.Inventory, error)
	// InspectContainer looks closely at one container.
	InspectContainer(ctx context.Context, id string) (runtime.Container, error)
	// DescribeContainer says what a container was made from.
	DescribeContainer(ctx context.Context, id string) (runtime.Description, error)
	// Events calls ready once the stream is open and handle for each event of
	// the install, until ctx ends or the stream breaks.
	Events(ctx context.Context, installID string, since time.Time, ready func(), handle func(runtime.Event)) error
}

// Links is what the loop needs of the links to supervisors.
type Links interface {
	// Connect links a supervisor; it tries once.
	Connect(ctx context.Context, sandboxID string) error
	// Connected tells whether a link stands.
	Connected(sandboxID string) bool
	// Drop breaks the link to a supervisor that is about to be replaced.
	Drop(sandboxID string)
}

// Files is what the loop needs to fill a new sandbox.
type Files interface {
	// CopyIn copies files of the host into a linked sandbox. Done again it replaces what
	// it had made; progress is told of what has moved since its last call.
	CopyIn(ctx context.Context, sandboxID string, check hostfiles.Checker, copies []hostfiles.Copy, progress func(one hostfiles.Copy, files, bytes int64)) error
}

// Execs is what the loop needs of the commands in sandboxes.
type Execs interface {
	// Release lets the container's own command start that was held back until its
	// files were there; a second call changes nothing.
	Release(ctx context.Context, sandboxID string) error
	// RunHook has one of the sandbox's own commands run by a linked supervisor. The
	// request's exec id is run once at most.
	RunHook(ctx context.Context, req *agboxv1.CreateExecRequest, hook machine.Hook) error
	// Main returns the container's own command of a linked supervisor's present life;
	// nil if there is none, or MainRecorded was called for it.
	Main(sandboxID string) *ledger.MainExec
	// MainRecorded tells that the ledger has decided about it, and whether it has a record.
	MainRecorded(main *ledger.MainExec, recorded bool)
	// EndAll ends the execs of a sandbox whose primary does not run.
	EndAll(ctx context.Context, sandboxID string) error
}
