package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
)

// SendMessage puts a message of a user into an inbox.
func (s *agentCalls) SendMessage(ctx context.Context, req *agboxv1.SendMessageRequest) (*agboxv1.SendMessageResponse, error) {
	to, err := s.mailbox(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	seq, err := s.ledger.SendMessage(ctx, agent.Init, to, req.GetKey(), req.GetText())
	if err != nil {
		return nil, err
	}
	return &agboxv1.SendMessageResponse{Seq: seq}, nil
}

// inboxBytes bounds the messages of one answer.
const inboxBytes = 1 << 20

// ReadInbox returns messages of an inbox.
func (s *agentCalls) ReadInbox(ctx context.Context, req *agboxv1.ReadInboxRequest) (*agboxv1.ReadInboxResponse, error) {
	of, err := s.mailbox(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if req.GetAck() > 0 && of != agent.Init {
		return nil, invalid("Only the messages of %s can be acknowledged here: agent %s acknowledges its own when it receives them. Leave out ack.", agent.Init, of)
	}
	if err := s.ledger.Acknowledge(ctx, of, req.GetAck()); err != nil {
		return nil, err
	}
	list, more, err := s.ledger.Messages(ctx, of, req.GetAfter(), inboxBytes)
	if err != nil {
		return nil, err
	}
	return &agboxv1.ReadInboxResponse{Messages: list, More: more}, nil
}

// mailbox returns the id of the agent that a request names. That of init has an inbox even
// before the first agent.
func (s *agentCalls) mailbox(ref string) (string, error) {
	if ref == agent.Init {
		return ref, nil
	}
	a, err := s.ledger.FindAgent(ref)
	return a.ID, err
}
