package server

import (
	"context"
	"io"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/guest"
)

// Engine is what the API asks of the engine itself. What changes sandboxes is the
// loop's alone.
type Engine interface {
	// Inventory lists everything that carries the install's label.
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

// Loop is what the API needs of the loop that moves sandboxes.
type Loop interface {
	// Health is what was last heard of the engine.
	Health() reconcile.EngineHealth
	// Probe tells whether the engine can be worked with now.
	Probe(ctx context.Context) error
	// Enqueue has the loop look at a sandbox.
	Enqueue(sandboxID string)
	// Interrupt is Enqueue for an intent that a step under way must not hold up.
	Interrupt(sandboxID string)
	// Condition is what is known of a sandbox apart from its record.
	Condition(sb ledger.Sandbox) reconcile.Condition
	// Containers returns the sandbox's containers as they were last seen.
	Containers(ctx context.Context, sb ledger.Sandbox) []runtime.Container
	// ServiceLogs writes a service's own output until ctx ends.
	ServiceLogs(ctx context.Context, sb ledger.Sandbox, service string, opts runtime.LogOptions, stdout, stderr io.Writer) error
}

// Execs is what the API needs to run commands.
type Execs interface {
	// Create accepts an exec; started is closed once it was started or could not be.
	Create(ctx context.Context, req *agboxv1.CreateExecRequest) (started <-chan struct{}, err error)
	// Cancel ends a running exec, with SIGKILL after grace.
	Cancel(ctx context.Context, sandboxID, execID string, grace time.Duration) error
	// Signal sends a signal to the process group of a running exec.
	Signal(ctx context.Context, sandboxID, execID string, signal int32) error
	// WriteStdin writes input of a writer from offset on. written counts all of its
	// bytes; open is false once the exec takes no input any more.
	WriteStdin(ctx context.Context, sandboxID, execID, writer string, offset uint64, data []byte, eof bool) (written uint64, open bool, err error)
	// Resize sets the window size of an exec's terminal.
	Resize(ctx context.Context, sandboxID, execID string, rows, columns uint32) error
}

// Files is what the API needs of the files of sandboxes.
type Files interface {
	// Call makes a small call about files.
	Call(ctx context.Context, sandboxID string, op guest.FileOp, req *guestv1.FileRequest) (*guestv1.FileReply, error)
	// Transfer begins a transfer; done must be called at its end.
	Transfer(ctx context.Context, sandboxID string, req *guestv1.TransferRequest) (t *guest.Transfer, done func(), err error)
}

// Examiner answers Doctor.
type Examiner interface {
	// Examine reports what is out of order, and mends what can be mended if fix is set.
	Examine(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error)
}
