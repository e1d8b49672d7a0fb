package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ReadJournal reads what the incarnations of an agent have reported, oldest first: those
// from the given incarnation on; 0 means all. Each row is a JSON object. If the daemon goes
// away, the client waits for it and continues at the same place.
func (c *Client) ReadJournal(ctx context.Context, agent string, incarnation uint32) iter.Seq2[*agboxv1.ReadJournalResponse, error] {
	return c.readJournal(ctx, &agboxv1.ReadJournalRequest{AgentId: agent, Incarnation: incarnation})
}

// FollowJournal is ReadJournal of all incarnations, and goes on with what is reported from now
// on until the agent has ended.
func (c *Client) FollowJournal(ctx context.Context, agent string) iter.Seq2[*agboxv1.ReadJournalResponse, error] {
	return c.readJournal(ctx, &agboxv1.ReadJournalRequest{AgentId: agent, Follow: true})
}

func (c *Client) readJournal(ctx context.Context, next *agboxv1.ReadJournalRequest) iter.Seq2[*agboxv1.ReadJournalResponse, error] {
	return func(yield func(*agboxv1.ReadJournalResponse, error) bool) {
		f := feed[agboxv1.ReadJournalResponse]{
			open: func(ctx context.Context, _ agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.ReadJournalResponse], error) {
				api, err := c.agents()
				if err != nil {
					return nil, err
				}
				return api.ReadJournal(ctx, next)
			},
			take: func(m *agboxv1.ReadJournalResponse) (bool, error) {
				if m.GetJson() == "" {
					return true, nil
				}
				next = &agboxv1.ReadJournalRequest{AgentId: next.GetAgentId(), Incarnation: m.GetIncarnation(), AfterRow: m.GetRow(), Follow: next.GetFollow()}
				return !yield(m, nil), nil
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}
