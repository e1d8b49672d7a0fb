// Package admission decides whether a request may become a sandbox or an exec, before
// there is a record of it. It resolves the description of a sandbox, checks it against
// the engine and the host, and checks its ports. It changes nothing.
package admission

import (
	"context"
	"log/slog"

	"buf.build/go/protovalidate"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/proto/agbox/caller"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
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
type Controller struct {
	engine    Engine
	sandboxes Sandboxes
	probe     func(ctx context.Context) error
	local     func(ctx context.Context, want runtime.ImageRequest) (bool, error)
	host      hostfiles.Checker
	paths     paths.Install
	rules     protovalidate.Validator
	lifetimes Lifetimes
	log       *slog.Logger
}

// New makes a Controller.
func New(o Options) *Controller {
	return &Controller{
		engine: o.Engine, sandboxes: o.Sandboxes, probe: o.Probe, local: o.Local, host: o.Host, paths: o.Paths, rules: o.Rules, lifetimes: o.Lifetimes, log: o.Log,
	}
}

// Resolve returns the spec that a request would result in, or all its problems, and
// notices for its author.
func (c *Controller) Resolve(ctx context.Context, req *agboxv1.CreateSandboxRequest) *spec.Result {
	result := c.merge(req)
	c.feasible(ctx, result)
	c.hostSide(newRequestList(req, result))
	if result.Spec != nil {
		c.lifetimes.fill(result.Spec)
	}
	return result
}

// Admit returns the spec for a new sandbox with this id. The error has all problems of
// the request, or says that the engine is not available or which port is taken.
func (c *Controller) Admit(ctx context.Context, id string, req *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSpec, error) {
	resolved, err := c.AdmitBuilds(ctx, req)
	if err != nil {
		return nil, err
	}
	return resolved, c.checkPorts(ctx, id, resolved)
}

// AdmitBuilds is Admit for a request whose images are to be built, and no more.
func (c *Controller) AdmitBuilds(ctx context.Context, req *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSpec, error) {
	result := c.merge(req)
	asked := newRequestList(req, result)
	asked.pulled = c.pulled(ctx)
	if asked.published = caller.Of(ctx).Published; asked.published {
		publishedRules(result)
	}
	c.hostSide(asked)
	if len(result.Problems) == 0 {
		if err := c.probe(ctx); err != nil {
			return nil, err
		}
	}
	c.feasible(ctx, result)
	if asked.published {
		result.Problems = inPublishedWords(result.Problems)
	}
	resolved, err := accepted(result)
	if err != nil {
		return nil, err
	}
	if err := asked.stillAgreed(); err != nil {
		return nil, err
	}
	asked.resolveSources(resolved)
	resolved.Published = asked.published
	c.lifetimes.fill(resolved)
	return resolved, bounded(resolved)
}

// merge merges the files of a request with its spec and checks the result, without the
// engine and the host.
func (c *Controller) merge(req *agboxv1.CreateSandboxRequest) *spec.Result {
	return spec.Resolve(spec.Input{
		Request: req, Rules: c.rules,
		Host: c.host.Host, CheckAgent: checkAgent,
	})
}
