package admission

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/spec"
)

// AgentIn returns the spec of an agent that is to run in a sandbox that exists: the fields
// of the request over the agent of the sandbox's spec. The error has all problems.
func (c *Controller) AgentIn(sandbox *agboxv1.CreateSpec, fields *agboxv1.AgentSpec) (*agboxv1.AgentSpec, error) {
	resolved, err := accepted(spec.ResolveAgent(spec.Input{Rules: c.rules, Host: c.host.Host, CheckAgent: checkAgent}, sandbox, fields))
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
	check := c.host
	// A path from a file that the caller does not vouch for has no links any more.
	check.Resolved = sandbox.GetSourcesResolved() && a.GetWork() == sandbox.GetAgent().GetWork()
	work, err := check.Work(a.GetWork(), sandbox.GetSecurity().GetAllowDangerousMounts())
	if f := fault.Of(err); f != nil {
		return nil, wrongSpec([]*agboxv1.SpecProblem{{Field: "agent.work", Message: f.Message}})
	}
	return work, err
}

// checkAgent is agent.Check for package spec.
func checkAgent(s *agboxv1.AgentSpec, problem func(path []any, format string, args ...any)) {
	agents.Check(s, problem)
}
