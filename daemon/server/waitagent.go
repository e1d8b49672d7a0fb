package server

import (
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
)

// WaitAgent waits until an agent has ended, or it and all below it.
func (s *agentCalls) WaitAgent(req *agboxv1.WaitAgentRequest, stream grpc.ServerStreamingServer[agboxv1.WaitAgentResponse]) error {
	if req.GetAgentId() == agent.Init {
		return invalid("Agent %s never ends: name an agent below it.", agent.Init)
	}
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return err
	}
	wait := s.ledger.WaitForEnd(a.ID, req.GetTree())
	defer wait.Close()
	for {
		ended, more := wait.Take()
		for _, a := range ended {
			if err := stream.Send(&agboxv1.WaitAgentResponse{Agent: s.answer(a).GetAgent()}); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		if err := s.life.wait(stream.Context(), wait.Changed); err != nil {
			return err
		}
	}
}
