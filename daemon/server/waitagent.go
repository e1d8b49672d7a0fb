package server

import (
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// WaitAgent waits until an agent has ended, or it and all below it.
func (s *agentCalls) WaitAgent(req *agboxv1.WaitAgentRequest, stream grpc.ServerStreamingServer[agboxv1.WaitAgentResponse]) error {
	id := req.GetAgentId()
	if id == agents.Init {
		return invalid("Agent %s never ends: name an agent below it.", agents.Init)
	}
	if _, err := s.ledger.FindAgent(id); err != nil && (!req.GetTree() || !s.ledger.Spawner(id)) {
		return err // a client that lost its stream waits on for the tree of a removed agent
	}
	wait := s.ledger.WaitForEnd(id, req.GetTree())
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
