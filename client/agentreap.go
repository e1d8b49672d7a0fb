package client

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ReapAgents has the daemon look at all agents at once, as it does by itself every few
// seconds, and returns what it found.
func (c *Client) ReapAgents(ctx context.Context) (*agboxv1.ReapAgentsResponse, error) {
	return unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.ReapAgents), new(agboxv1.ReapAgentsRequest), idempotent)
}
