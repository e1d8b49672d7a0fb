package client

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// WaitAgent waits until an agent has ended, and returns it.
func (c *Client) WaitAgent(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	var ended *agboxv1.Agent
	err := c.waitAgent(ctx, &agboxv1.WaitAgentRequest{AgentId: agent}, func(a *agboxv1.Agent) error {
		ended = a
		return nil
	})
	var e *Error
	if errors.As(err, &e) && e.Code == codes.Unimplemented {
		return c.waitAgentOfOlder(ctx, agent)
	}
	if err == nil && ended == nil {
		return c.GetAgent(ctx, agent) // which says that it was removed
	}
	return ended, err
}

// waitAgentOfOlder is WaitAgent with a daemon that has no such call.
func (c *Client) waitAgentOfOlder(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	a, err := c.GetAgent(ctx, agent)
	if err != nil || a.GetEndedAt() != nil {
		return a, err
	}
	for ev, err := range c.WatchAgents(ctx, a.GetAgentId(), 0) {
		if err != nil {
			return nil, err
		}
		if ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED || ev.GetType() == agboxv1.AgentEventType_AGENT_DELETED {
			break
		}
	}
	return c.GetAgent(ctx, a.GetAgentId())
}

// WaitAgentTree waits until an agent and all agents below it have ended, also those that are
// spawned meanwhile, and those that others adopt. It calls each with every one of them when it
// has ended, a parent not necessarily after its children. An agent that was removed is left out;
// the one that is named is ErrNotFound only if all below it were removed too.
// It ends with the first error, also of each.
func (c *Client) WaitAgentTree(ctx context.Context, agent string, each func(*agboxv1.Agent) error) error {
	return c.waitAgent(ctx, &agboxv1.WaitAgentRequest{AgentId: agent, Tree: true}, each)
}

// waitAgent calls each with every agent of a wait once.
func (c *Client) waitAgent(ctx context.Context, in *agboxv1.WaitAgentRequest, each func(*agboxv1.Agent) error) error {
	told := make(map[string]bool) // a stream that is opened again begins anew
	f := feed[agboxv1.WaitAgentResponse]{
		closes: true,
		open: func(ctx context.Context, _ agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.WaitAgentResponse], error) {
			api, err := c.agents()
			if err != nil {
				return nil, err
			}
			return api.WaitAgent(ctx, in)
		},
		take: func(m *agboxv1.WaitAgentResponse) (bool, error) {
			id := m.GetAgent().GetAgentId()
			if told[id] {
				return false, nil
			}
			told[id] = true
			return false, each(m.GetAgent())
		},
	}
	return f.run(ctx, c)
}
