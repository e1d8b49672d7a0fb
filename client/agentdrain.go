package client

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// DrainAgents lets the incarnations of agents save their work and exit. The agents are then
// PAUSED until WakeAgent. It returns when the requests are recorded, with the selected
// agents; WaitAgentHalted waits until it is done.
func (c *Client) DrainAgents(ctx context.Context, in *agboxv1.DrainAgentsRequest) ([]*agboxv1.Agent, error) {
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.DrainAgents), in, idempotent)
	return out.GetAgents(), err
}

// WakeAgent lets an agent go on that was drained. It returns when the request is recorded.
func (c *Client) WakeAgent(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	return c.ResolveAgent(ctx, agent, agboxv1.AgentVerdict_AGENT_VERDICT_RESUME)
}

// WaitAgentHalted waits until an agent is PAUSED without a running incarnation, or has
// ended, and returns it.
func (c *Client) WaitAgentHalted(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	halted := func(a *agboxv1.Agent) bool {
		return a.GetEndedAt() != nil || a.GetState() == agboxv1.AgentState_AGENT_STATE_PAUSED && !a.GetRunning()
	}
	a, err := c.GetAgent(ctx, agent)
	if err != nil || halted(a) {
		return a, err
	}
	for ev, err := range c.WatchAgents(ctx, a.GetAgentId(), 0) {
		if err != nil {
			return nil, err
		}
		switch ev.GetType() {
		case agboxv1.AgentEventType_AGENT_PAUSED, agboxv1.AgentEventType_AGENT_ENDED, agboxv1.AgentEventType_AGENT_DELETED:
			if a, err = c.GetAgent(ctx, a.GetAgentId()); err != nil || halted(a) {
				return a, err
			}
		}
	}
	return c.GetAgent(ctx, a.GetAgentId())
}
