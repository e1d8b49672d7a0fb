package client

import (
	"context"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// AgentHold is a hold of a client on an agent.
type AgentHold struct {
	// Agent is the id of the agent.
	Agent string
	// Name of the hold. NewID makes one.
	Name string
	// Linger is how long the hold stays after the connection was lost, at most a day. 0 means
	// 30 s.
	Linger time.Duration
}

// HoldAgent holds an agent with lifetime held as long as the sequence is read. It yields the
// agent when it is held and, as the last item, when it has ended or the hold was closed. If the
// daemon goes away, the client waits for it and holds the agent again, so that a restart of the
// daemon does not suspend it. When the reader stops, or ctx ends, the hold lingers; CloseHold
// ends it at once.
func (c *Client) HoldAgent(ctx context.Context, h AgentHold) iter.Seq2[*agboxv1.Agent, error] {
	return func(yield func(*agboxv1.Agent, error) bool) {
		in := &agboxv1.HoldAgentRequest{AgentId: h.Agent, Hold: h.Name}
		if h.Linger > 0 {
			in.Linger = durationpb.New(h.Linger)
		}
		f := feed[agboxv1.HoldAgentResponse]{
			open: func(ctx context.Context, _ agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.HoldAgentResponse], error) {
				api, err := c.agents()
				if err != nil {
					return nil, err
				}
				return api.HoldAgent(ctx, in)
			},
			take: func(m *agboxv1.HoldAgentResponse) (bool, error) {
				held := slices.Contains(m.GetAgent().GetHolders(), "client:"+h.Name)
				return !yield(m.GetAgent(), nil) || !held || m.GetAgent().GetEndedAt() != nil, nil
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}

// CloseHold ends a hold at once: if nobody else holds the agent, its work is saved and it is
// SUSPENDED.
func (c *Client) CloseHold(ctx context.Context, agent, hold string) (*agboxv1.Agent, error) {
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.CloseHold), &agboxv1.CloseHoldRequest{AgentId: agent, Hold: hold}, idempotent)
	return out.GetAgent(), err
}
