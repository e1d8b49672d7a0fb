// Package admission decides whether a request may become a sandbox or an exec,
// before there is a record of it: it resolves the description of a sandbox, checks
// it against this engine and this host, and checks its ports. It changes nothing.
package admission

import (
	"context"
	"log/slog"

	"buf.build/go/protovalidate"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
)

// Engine is what admission asks of the container engine.
type Engine interface {
	// Abilities tells what the engine and its host can do.
	Abilities(ctx context.Context) (runtime.Abilities, error)
}

// Sandboxes are the sandboxes that exist.
type Sandboxes interface {
	// FindSandbox returns the sandbox of an id, a name, or the beginning of an id.
	FindSandbox(ctx context.Context, ref string) (ledger.Sandbox, error)
	// Sandboxes returns all that are not deleted.
	Sandboxes() []ledger.Sandbox
}

// Options are what a Controller works with.
type Options struct {
	Engine    Engine
	Sandboxes Sandboxes
	// Probe tells whether the engine can be worked with now.
	Probe func(ctx context.Context) error
	// Host checks what sandboxes take from the host.
	Host hostfiles.Checker
	// Paths are those of this install, which no sandbox may mount.
	Paths paths.Install
	// Rules are the rules of the .proto files.
	Rules protovalidate.Validator
	Log   *slog.Logger
}

// Controller admits sandboxes, or refuses them.
type Controller struct {
	engine    Engine
	sandboxes Sandboxes
	probe     func(ctx context.Context) error
	host      hostfiles.Checker
	paths     paths.Install
	rules     protovalidate.Validator
	log       *slog.Logger
}

// New makes a Controller.
func New(o Options) *Controller {
	return &Controller{
		engine: o.Engine, sandboxes: o.Sandboxes, probe: o.Probe, host: o.Host, paths: o.Paths, rules: o.Rules, log: o.Log,
	}
}

// Resolve tells what a request to create a sandbox would come to: its spec, or all
// that is wrong with it, and what its author should know.
func (c *Controller) Resolve(ctx context.Context, req *agboxv1.CreateSandboxRequest) *spec.Result {
	result := c.merge(req)
	c.feasible(ctx, result)
	c.hostSide(req, result)
	return result
}

// Admit returns the spec of the sandbox to be made for a request, whose id is id. The
// error tells all that is wrong with it, or that the engine is not there, or which
// port is taken.
func (c *Controller) Admit(ctx context.Context, id string, req *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSpec, error) {
	result := c.merge(req)
	c.hostSide(req, result)
	if len(result.Problems) == 0 {
		if err := c.probe(ctx); err != nil {
			return nil, err
		}
	}
	c.feasible(ctx, result)
	resolved, err := accepted(result)
	if err != nil {
		return nil, err
	}
	return resolved, c.checkPorts(ctx, id, resolved)
}

// merge merges the files of a request with its spec and checks the result, without a
// look at the engine or the host.
func (c *Controller) merge(req *agboxv1.CreateSandboxRequest) *spec.Result {
	return spec.Resolve(spec.Input{
		Request: req, Rules: c.rules,
		Own: []string{c.paths.Data, c.paths.Config, c.paths.Run},
	})
}
