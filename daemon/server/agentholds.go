package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// HoldAgent holds an agent as long as the stream is open.
func (s *agentCalls) HoldAgent(req *agboxv1.HoldAgentRequest, stream grpc.ServerStreamingServer[agboxv1.HoldAgentResponse]) error {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return err
	}
	id, holder, linger := a.ID, agents.ClientHolder(req.GetHold()), agents.HoldLinger
	if req.GetLinger() != nil {
		linger = max(req.GetLinger().AsDuration(), time.Millisecond)
	}
	// First it counts as connected: the end of a hold that has lingered is not recorded then.
	defer s.incarnations.Hold(id, holder)()
	if !a.Over() {
		if _, err := s.ledger.OpenHold(stream.Context(), id, holder, linger); err != nil {
			if now, exists := s.ledger.Agent(id); !exists || !now.Over() {
				return err
			} // it has ended meanwhile: the caller is told how
		}
		s.loop.EnqueueAgent(id)
	}
	for first := true; ; first = false {
		changed := s.ledger.AgentChanged(id)
		a, exists := s.ledger.Agent(id)
		over := !exists || a.Over() || !a.HeldBy(holder)
		if exists && (first || over) {
			if err := stream.Send(&agboxv1.HoldAgentResponse{Agent: s.view(a)}); err != nil {
				return err
			}
		}
		if over {
			return nil
		}
		if err := s.life.wait(stream.Context(), changed); err != nil {
			return err
		}
	}
}

// CloseHold ends a hold.
func (s *agentCalls) CloseHold(ctx context.Context, req *agboxv1.CloseHoldRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if a, err = s.ledger.CloseHold(ctx, a.ID, agents.ClientHolder(req.GetHold()), "the client closed it"); err != nil {
		return nil, err
	}
	s.loop.EnqueueAgent(a.ID)
	return s.answer(a), nil
}
