package reconcile

import (
	"context"
	"time"

	"github.com/agbox/agbox/runtime"
)

// Engine is what the loop needs of a container engine. Every verb is idempotent
// and honours the deadline of its context; errors carry an errdefs class.
type Engine interface {
	// Info asks the engine who it is.
	Info(ctx context.Context) (runtime.EngineInfo, error)
	// EnsureImage returns the local image, or pulls it. progress may be nil.
	EnsureImage(ctx context.Context, ref string, progress func(runtime.PullProgress)) (runtime.Image, error)
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
	// Inventory lists everything that carries the install's label.
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	// SandboxInventory lists what carries the labels of one sandbox.
	SandboxInventory(ctx context.Context, installID, sandboxID string) (runtime.Inventory, error)
	// InspectContainer looks closely at one container.
	InspectContainer(ctx context.Context, id string) (runtime.Container, error)
	// Events calls ready once the stream is open and handle for each event of
	// the install, until ctx ends or the stream breaks.
	Events(ctx context.Context, installID string, since time.Time, ready func(), handle func(runtime.Event)) error
}

// Guests is what the loop needs of the links to supervisors.
type Guests interface {
	// Connect links a supervisor; it tries once.
	Connect(ctx context.Context, sandboxID string) error
	// Connected tells whether a link stands.
	Connected(sandboxID string) bool
	// Drop gives up the link to a supervisor that is about to be replaced.
	Drop(sandboxID string)
	// Settle ends the execs of a sandbox whose primary does not run.
	Settle(ctx context.Context, sandboxID string) error
}
