package client

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Leases returns what an agent holds and asks for, or what all do if agent is empty, by
// resource.
func (c *Client) Leases(ctx context.Context, agent string) ([]*agboxv1.LeaseEntry, error) {
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.ListLeases), &agboxv1.ListLeasesRequest{AgentId: agent}, idempotent)
	return out.GetLeases(), err
}

// BreakLease takes a resource away from an agent, whose program is not told.
func (c *Client) BreakLease(ctx context.Context, agent, resource string) (*agboxv1.Agent, error) {
	in := &agboxv1.BreakLeaseRequest{AgentId: agent, Resource: resource}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.BreakLease), in, atMostOnce)
	return out.GetAgent(), err
}
