package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// SendMessage puts a text of at most 64 KiB into the inbox of an agent and returns its
// number there. A repeated call with the same key sends nothing more; if key is empty, it
// chooses one.
func (c *Client) SendMessage(ctx context.Context, agent, key, text string) (uint64, error) {
	if key == "" {
		key = NewID()
	}
	in := &agboxv1.SendMessageRequest{AgentId: agent, Key: key, Text: text}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.SendMessage), in, idempotent)
	return out.GetSeq(), err
}

// SendOnStream sends a text of at most 64 KiB to all agents that have a stream open: in stacks
// with the name stack or, if that is empty, in no stack. It returns all of them; one that
// refused the text has a reason. A repeated call with the same key sends nothing more; if key
// is empty, it chooses one. Without a recipient the error is ErrNotFound.
func (c *Client) SendOnStream(ctx context.Context, stream, stack, key, text string) ([]*agboxv1.StreamRecipient, error) {
	if key == "" {
		key = NewID()
	}
	in := &agboxv1.SendMessageRequest{Stream: stream, Stack: stack, Key: key, Text: text}
	out, err := unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.SendMessage), in, idempotent)
	return out.GetRecipients(), err
}

// Inbox returns the messages in the inbox of an agent, oldest first. It ends with an error,
// or after those that there are.
func (c *Client) Inbox(ctx context.Context, agent string) iter.Seq2[*agboxv1.AgentMessage, error] {
	return func(yield func(*agboxv1.AgentMessage, error) bool) {
		for in := (&agboxv1.ReadInboxRequest{AgentId: agent}); ; {
			out, err := c.readInbox(ctx, in)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, m := range out.GetMessages() {
				if in.After = m.GetSeq(); !yield(m, nil) {
					return
				}
			}
			if !out.GetMore() {
				return
			}
		}
	}
}

// FollowInbox returns the messages in the inbox of an agent, oldest first, and then those that
// come. It ends with an error, or when the agent was removed. If the daemon goes away, the
// client waits for it and continues at the same place.
func (c *Client) FollowInbox(ctx context.Context, agent string) iter.Seq2[*agboxv1.AgentMessage, error] {
	return func(yield func(*agboxv1.AgentMessage, error) bool) {
		next := &agboxv1.FollowInboxRequest{AgentId: agent}
		f := feed[agboxv1.FollowInboxResponse]{
			open: func(ctx context.Context, _ agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.FollowInboxResponse], error) {
				api, err := c.agents()
				if err != nil {
					return nil, err
				}
				return api.FollowInbox(ctx, next)
			},
			take: func(r *agboxv1.FollowInboxResponse) (bool, error) {
				if r.GetMessage() == nil {
					return true, nil
				}
				next = &agboxv1.FollowInboxRequest{AgentId: agent, After: r.GetMessage().GetSeq()}
				return !yield(r.GetMessage(), nil), nil
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}

// AcknowledgeInbox removes the messages up to a number from the inbox of the operator,
// which is that of "init".
func (c *Client) AcknowledgeInbox(ctx context.Context, upto uint64) error {
	_, err := c.readInbox(ctx, &agboxv1.ReadInboxRequest{AgentId: "init", Ack: upto, After: upto})
	return err
}

func (c *Client) readInbox(ctx context.Context, in *agboxv1.ReadInboxRequest) (*agboxv1.ReadInboxResponse, error) {
	return unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.ReadInbox), in, idempotent)
}
