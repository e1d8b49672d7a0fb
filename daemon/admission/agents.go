package admission

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/spec"
)

// AgentIn returns the spec of an agent that is to run in a sandbox that exists: the fields
// of the request over the block "agent" of the sandbox's spec. The error has all problems.
func (c *Controller) AgentIn(block, fields *agboxv1.AgentSpec) (*agboxv1.AgentSpec, error) {
	resolved, err := accepted(spec.ResolveAgent(block, fields, c.rules, checkAgent))
	return resolved.GetAgent(), err
}

// AgentOf returns the spec of the agent that a request for its own sandbox describes. It
// looks neither at the engine nor at the host, so for the same request it is the same.
func (c *Controller) AgentOf(req *agboxv1.CreateSandboxRequest) *agboxv1.AgentSpec {
	return c.merge(req).Draft().GetAgent()
}

// checkAgent is agent.Check for package spec.
func checkAgent(s *agboxv1.AgentSpec, problem func(path []any, format string, args ...any)) {
	agent.Check(s, problem)
}
