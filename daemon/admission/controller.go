package admission

import (
	"context"
	"log/slog"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Engine is the container engine as admission needs it.
type Engine interface {
	// Abilities returns what the engine and its host support.
	Abilities(ctx context.Context) (runtime.Abilities, error)
}

// Sandboxes gives access to the existing sandboxes.
type Sandboxes interface {
	// FindSandbox returns the sandbox with an id.
	FindSandbox(ctx context.Context, id string) (ledger.Sandbox, error)
	// Sandboxes returns all sandboxes that are not deleted.
	Sandboxes() []ledger.Sandbox
}

// Options are the dependencies of a Controller.
type Options struct {
	Engine    Engine
	Sandboxes Sandboxes
	// Probe reports whether the engine is usable now.
	Probe func(ctx context.Context) error
	// Local reports whether the engine has an image; nil if all are taken for local.
	Local func(ctx context.Context, want runtime.ImageRequest) (bool, error)
	// Host checks host paths that sandboxes mount or copy.
	Host hostfiles.Checker
	// Paths are the paths of this install, which no sandbox may mount.
	Paths paths.Install
	// Rules are the rules of the .proto files.
	Rules protovalidate.Validator
	// Lifetimes are those of sandboxes that do not set their own.
	Lifetimes Lifetimes
	Log       *slog.Logger
}

// Controller admits or refuses sandboxes.
type Controller struct{ o Options }

// New makes a Controller.
func New(o Options) *Controller { return &Controller{o} }

// Lifetimes are the operator's lifetimes of sandboxes that do not set their own. 0 means
// never. nil means the published default for clients of the published contract, and never for
// clients of ours.
type Lifetimes struct {
	// Idle is how long a READY sandbox may be idle before it is stopped.
	Idle *time.Duration
	// Cleanup is how long a sandbox is STOPPED before it is deleted.
	Cleanup *time.Duration
}

// fill sets the lifetimes that a spec leaves out.
func (l Lifetimes) fill(s *agboxv1.CreateSpec) {
	set := func(field **durationpb.Duration, setting *time.Duration, published time.Duration) {
		switch {
		case *field != nil:
		case setting != nil:
			*field = durationpb.New(*setting)
		case s.GetPublished():
			*field = durationpb.New(published)
		}
	}
	set(&s.IdleTtl, l.Idle, publishedIdleTTL)
	set(&s.CleanupTtl, l.Cleanup, publishedCleanupTTL)
}

// The published defaults, for sandboxes of clients of the published contract.
const (
	publishedIdleTTL    = 10 * time.Minute
	publishedCleanupTTL = 360 * time.Hour
)
