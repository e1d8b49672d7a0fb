package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// agents returns the API for agents over the connection that a call has opened.
func (c *Client) agents() (agboxv1.AgentServiceClient, error) {
	live := c.live.Load()
	if live == nil {
		return nil, status.Error(codes.FailedPrecondition, "The client is closed.")
	}
	return agboxv1.NewAgentServiceClient(live.grpc), nil
}

// agentMethod makes a call of AgentService over the client's connection.
func agentMethod[Req, Resp any](c *Client, m func(agboxv1.AgentServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error)) method[Req, Resp] {
	return func(_ agboxv1.SandboxServiceClient, ctx context.Context, in *Req, opts ...grpc.CallOption) (*Resp, error) {
		api, err := c.agents()
		if err != nil {
			return nil, err
		}
		return m(api, ctx, in, opts...)
	}
}

// SpawnAgent starts an agent and returns when it is accepted, in state PENDING. It sets
// agent_id if that is empty, so repeating the call after a lost answer does not start a
// second agent.
func (c *Client) SpawnAgent(ctx context.Context, in *agboxv1.SpawnAgentRequest) (*agboxv1.Agent, error) {
	if in.GetAgentId() == "" {
		in.AgentId = NewID()
	}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.SpawnAgent), in, idempotent)
	return out.GetAgent(), err
}

// GetAgent returns one agent with its spec.
func (c *Client) GetAgent(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.GetAgent), &agboxv1.GetAgentRequest{AgentId: agent}, idempotent)
	return out.GetAgent(), err
}

// ListAgents returns the agents that the request selects, oldest first.
func (c *Client) ListAgents(ctx context.Context, in *agboxv1.ListAgentsRequest) ([]*agboxv1.Agent, error) {
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.ListAgents), in, idempotent)
	return out.GetAgents(), err
}

// KillAgent ends an agent. It returns when the request is recorded; WaitAgent waits until
// it is done.
func (c *Client) KillAgent(ctx context.Context, agent string, mode agboxv1.KillMode) (*agboxv1.Agent, error) {
	return c.KillAgentAs(ctx, &agboxv1.KillAgentRequest{AgentId: agent, Mode: mode})
}

// KillAgentAs is KillAgent with all fields of the request, which say for example what becomes
// of the children.
func (c *Client) KillAgentAs(ctx context.Context, in *agboxv1.KillAgentRequest) (*agboxv1.Agent, error) {
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.KillAgent), in, idempotent)
	return out.GetAgent(), err
}

// ResolveAgent decides about an agent that is ORPHANED: it goes on in a new incarnation, or
// it ends. It returns when the decision is recorded.
func (c *Client) ResolveAgent(ctx context.Context, agent string, verdict agboxv1.AgentVerdict) (*agboxv1.Agent, error) {
	in := &agboxv1.ResumeAgentRequest{AgentId: agent, Verdict: verdict}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.ResumeAgent), in, atMostOnce)
	return out.GetAgent(), err
}

// PauseAgent pauses an agent until DecideAgent. message says why, for whoever decides. It
// returns when the pause is recorded.
func (c *Client) PauseAgent(ctx context.Context, agent, message string) (*agboxv1.Agent, error) {
	in := &agboxv1.PauseAgentRequest{AgentId: agent, Message: message}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.PauseAgent), in, idempotent)
	return out.GetAgent(), err
}

// DecideAgent approves or denies what an agent waits for. message says why, for the agent. It
// returns when the decision is recorded.
func (c *Client) DecideAgent(ctx context.Context, agent string, verdict agboxv1.AgentVerdict, message string) (*agboxv1.Agent, error) {
	in := &agboxv1.ResumeAgentRequest{AgentId: agent, Verdict: verdict, Message: message}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.ResumeAgent), in, atMostOnce)
	return out.GetAgent(), err
}

// DeleteAgent removes an agent that has ended.
func (c *Client) DeleteAgent(ctx context.Context, agent string) error {
	return c.deleteAgent(ctx, agent, false)
}

// ListCheckpoints returns the checkpoints of an agent that are kept, oldest first.
func (c *Client) ListCheckpoints(ctx context.Context, agent string) ([]*agboxv1.AgentCheckpoint, error) {
	in := &agboxv1.ListCheckpointsRequest{AgentId: agent}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.ListCheckpoints), in, idempotent)
	return out.GetCheckpoints(), err
}

// GetCheckpoint returns a checkpoint of an agent and its file, of at most 17 MiB. 0 means the
// newest one that is whole.
func (c *Client) GetCheckpoint(ctx context.Context, agent string, seq uint64) (info *agboxv1.AgentCheckpoint, file []byte, err error) {
	f := feed[agboxv1.GetCheckpointResponse]{
		closes: true,
		open: func(ctx context.Context, _ agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.GetCheckpointResponse], error) {
			api, err := c.agents()
			if err != nil {
				return nil, err
			}
			info, file = nil, nil
			return api.GetCheckpoint(ctx, &agboxv1.GetCheckpointRequest{AgentId: agent, Seq: seq})
		},
		take: func(m *agboxv1.GetCheckpointResponse) (bool, error) {
			if m.GetCheckpoint() != nil {
				info = m.GetCheckpoint()
			}
			file = append(file, m.GetData()...)
			return false, nil
		},
	}
	err = f.run(ctx, c)
	return info, file, err
}

// WatchAgents replays and follows the events of all agents, or of one, in commit order and
// without gaps or duplicates, even if the daemon restarts. It starts after a position; 0
// means everything that is kept. It ends with an error, or when the caller ends its loop. If
// it would skip events that are no longer kept, the error is ErrOutOfRange.
func (c *Client) WatchAgents(ctx context.Context, agent string, after uint64) iter.Seq2[*agboxv1.AgentEvent, error] {
	return func(yield func(*agboxv1.AgentEvent, error) bool) {
		f := feed[agboxv1.WatchAgentsResponse]{
			open: func(ctx context.Context, _ agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.WatchAgentsResponse], error) {
				api, err := c.agents()
				if err != nil {
					return nil, err
				}
				return api.WatchAgents(ctx, &agboxv1.WatchAgentsRequest{AgentId: agent, AfterPosition: after})
			},
			take: func(m *agboxv1.WatchAgentsResponse) (bool, error) {
				if m.GetEvent() == nil || m.GetPosition() <= after {
					return false, nil
				}
				after = m.GetPosition()
				return !yield(m.GetEvent(), nil), nil
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}
