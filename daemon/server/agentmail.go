package server

import (
	"context"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
)

// SendMessage puts a message of a user into an inbox, or into those of a stream.
func (s *agentCalls) SendMessage(ctx context.Context, req *agboxv1.SendMessageRequest) (*agboxv1.SendMessageResponse, error) {
	switch {
	case (req.GetAgentId() == "") == (req.GetStream() == ""):
		return nil, invalid("Give either agent_id or stream: a message goes to one agent, or to all that have a stream open.")
	case req.GetStream() != "":
		return s.sendOnStream(ctx, req)
	case req.GetStack() != "":
		return nil, invalid("stack is for a message on a stream: leave it out, or give stream instead of agent_id.")
	}
	to, err := s.mailbox(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	seq, err := s.ledger.SendMessage(ctx, agents.Init, to, req.GetKey(), req.GetText())
	if err != nil {
		return nil, err
	}
	return &agboxv1.SendMessageResponse{Seq: seq}, nil
}

// sendOnStream puts a message of a user into the inboxes of all that have a stream open.
func (s *agentCalls) sendOnStream(ctx context.Context, req *agboxv1.SendMessageRequest) (*agboxv1.SendMessageResponse, error) {
	if !journal.ValidStream(req.GetStream()) {
		return nil, invalid("A stream has a name of at most 63 lower-case letters, digits, dots, dashes and underscores, and not %.80q.", req.GetStream())
	}
	list, err := s.ledger.SendOnStream(ctx, ledger.StreamText{
		From: agents.Init, Stream: req.GetStream(), Stack: req.GetStack(), Key: req.GetKey(), Text: req.GetText(),
	})
	if err != nil {
		return nil, err
	}
	out := new(agboxv1.SendMessageResponse)
	for _, d := range list {
		to := &agboxv1.StreamRecipient{AgentId: d.To.ID, Name: d.To.Name, Seq: d.Seq}
		if d.Refused != nil {
			to.Reason, to.Message = d.Refused.Reason, d.Refused.Message
		}
		out.Recipients = append(out.Recipients, to)
	}
	return out, nil
}

// inboxBytes bounds the messages of one answer.
const inboxBytes = 1 << 20

// ReadInbox returns messages of an inbox.
func (s *agentCalls) ReadInbox(ctx context.Context, req *agboxv1.ReadInboxRequest) (*agboxv1.ReadInboxResponse, error) {
	of, err := s.mailbox(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if req.GetAck() > 0 && of != agents.Init {
		return nil, invalid("Only the messages of %s can be acknowledged here: agent %s acknowledges its own when it receives them. Leave out ack.", agents.Init, of)
	}
	if err := s.ledger.Acknowledge(ctx, of, req.GetAck()); err != nil {
		return nil, err
	}
	list, left, err := s.ledger.Messages(ctx, of, req.GetAfter(), inboxBytes)
	if err != nil {
		return nil, err
	}
	return &agboxv1.ReadInboxResponse{Messages: list, More: left > 0}, nil
}

// FollowInbox sends the messages of an inbox as they come.
func (s *agentCalls) FollowInbox(req *agboxv1.FollowInboxRequest, stream grpc.ServerStreamingServer[agboxv1.FollowInboxResponse]) error {
	ctx, after := stream.Context(), req.GetAfter()
	of, err := s.mailbox(req.GetAgentId())
	if err != nil {
		return err
	}
	for {
		changed := s.ledger.InboxChanged(of)
		list, left, err := s.ledger.Messages(ctx, of, after, inboxBytes)
		if err != nil {
			return err
		}
		for _, m := range list {
			if err := stream.Send(&agboxv1.FollowInboxResponse{Message: m}); err != nil {
				return err
			}
			after = m.GetSeq()
		}
		if left > 0 {
			continue
		}
		if _, err := s.mailbox(of); errdefs.IsNotFound(err) {
			return stream.Send(&agboxv1.FollowInboxResponse{})
		}
		if err := s.life.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// mailbox returns the id of the agent that a request names. That of init has an inbox even
// before the first agent.
func (s *agentCalls) mailbox(ref string) (string, error) {
	if ref == agents.Init {
		return ref, nil
	}
	a, err := s.ledger.FindAgent(ref)
	return a.ID, err
}
