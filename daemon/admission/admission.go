// Package admission decides whether a request may become a sandbox or an exec, before
// there is a record of it. It resolves the description of a sandbox, checks it against
// the engine and the host, and checks its ports. It changes nothing.
package admission

import (
	"context"
	"fmt"
	"strings"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/proto/agbox/caller"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
)

// Resolve returns the spec that a request would result in, or all its problems, and
// notices for its author.
func (c *Controller) Resolve(ctx context.Context, req *agboxv1.CreateSandboxRequest) *spec.Result {
	result := c.merge(req)
	c.feasible(ctx, result)
	c.hostSide(newRequestList(req, result))
	if result.Spec != nil {
		c.o.Lifetimes.fill(result.Spec)
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
		if err := c.o.Probe(ctx); err != nil {
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
	c.o.Lifetimes.fill(resolved)
	return resolved, bounded(resolved)
}

// merge merges the files of a request with its spec and checks the result, without the
// engine and the host.
func (c *Controller) merge(req *agboxv1.CreateSandboxRequest) *spec.Result {
	return spec.Resolve(spec.Input{
		Request: req, Rules: c.o.Rules,
		Host: c.o.Host.Host, CheckAgent: checkAgent,
	})
}

// AgentIn returns the spec of an agent that is to run in a sandbox that exists: the fields
// of the request over the agent of the sandbox's spec. The error has all problems.
func (c *Controller) AgentIn(sandbox *agboxv1.CreateSpec, fields *agboxv1.AgentSpec) (*agboxv1.AgentSpec, error) {
	resolved, err := accepted(spec.ResolveAgent(spec.Input{Rules: c.o.Rules, Host: c.o.Host.Host, CheckAgent: checkAgent}, sandbox, fields))
	return resolved.GetAgent(), err
}

// ChildIn checks the spec of an agent that another one in the sandbox spawns. The sandbox's
// own agent adds nothing to it. The error has all problems.
func (c *Controller) ChildIn(sandbox *agboxv1.CreateSpec, child *agboxv1.AgentSpec) (*agboxv1.AgentSpec, error) {
	return c.AgentIn(&agboxv1.CreateSpec{Security: sandbox.GetSecurity(), Services: sandbox.GetServices()}, child)
}

// AgentOf returns the spec of the agent that a request for its own sandbox describes. It
// looks neither at the engine nor at the host, so for the same request it is the same.
func (c *Controller) AgentOf(req *agboxv1.CreateSandboxRequest) *agboxv1.AgentSpec {
	return c.merge(req).Draft().GetAgent()
}

// Work reads the work of an agent, by the rules of copies. sandbox is the spec of its
// sandbox. It is nil if the agent has none. The error is as that of AgentIn.
func (c *Controller) Work(sandbox *agboxv1.CreateSpec, a *agboxv1.AgentSpec) ([]byte, error) {
	if a.GetWork() == "" {
		return nil, nil
	}
	check := c.o.Host
	// A path from a file that the caller does not vouch for has no links any more.
	check.Resolved = sandbox.GetSourcesResolved() && a.GetWork() == sandbox.GetAgent().GetWork()
	work, err := check.Work(a.GetWork(), sandbox.GetSecurity().GetAllowDangerousMounts())
	if f := fault.Of(err); f != nil {
		return nil, wrongSpec([]*agboxv1.SpecProblem{{Field: "agent.work", Message: f.Message}})
	}
	return work, err
}

// checkAgent is agents.Check for package spec.
func checkAgent(s *agboxv1.AgentSpec, problem func(path []any, format string, args ...any)) {
	agents.Check(s, problem)
}

// Derived checks the spec of a sandbox that was derived from that of another one, which was
// admitted. The sources may lead elsewhere by now, and the operator's policy may be another one.
// It does not ask the engine: that has made a sandbox that needs at least as much.
func (c *Controller) Derived(derived *agboxv1.CreateSpec) error {
	var problems []*agboxv1.SpecProblem
	check, bound := c.o.Host, c.o.Host.Bound()
	check.Resolved, check.Thorough = derived.GetSourcesResolved(), true
	for _, p := range check.Spec(derived) {
		// The program may not learn what the paths of the host are by now.
		c.o.Log.Warn("a program has asked for a sandbox with a mount that is refused", "field", fieldName(p.Path), "error", p.Err)
		problems = append(problems, &agboxv1.SpecProblem{
			Field: fieldName(p.Path), Message: "This is refused by now: leave it out, or see the log of the daemon.",
		})
	}
	for _, field := range bound.Forbidden(derived.GetSecurity(), derived.GetGpus()) {
		problems = append(problems, &agboxv1.SpecProblem{
			Field: strings.Join(field, "."), Message: "The operator's policy " + bound.File + " forbids this by now: ask for a sandbox without it, or ask the operator of this machine.",
		})
	}
	if len(problems) > 0 {
		return wrongSpec(problems)
	}
	return nil
}

// fieldName writes the path of a field, as mounts[0].source.
func fieldName(path []any) string {
	var name strings.Builder
	for _, step := range path {
		if i, isIndex := step.(int); isIndex {
			fmt.Fprintf(&name, "[%d]", i)
			continue
		}
		if name.Len() > 0 {
			name.WriteByte('.')
		}
		fmt.Fprint(&name, step)
	}
	return name.String()
}
