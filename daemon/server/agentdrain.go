package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// DrainAgents records the wish that agents save their work and wait.
func (s *agentCalls) DrainAgents(ctx context.Context, req *agboxv1.DrainAgentsRequest) (*agboxv1.DrainAgentsResponse, error) {
	selected, err := s.toDrain(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := new(agboxv1.DrainAgentsResponse)
	for _, a := range selected {
		if a, err = s.ledger.RequestDrain(ctx, a.ID); err != nil {
			return nil, err
		}
		s.loop.EnqueueAgent(a.ID)
		resp.Agents = append(resp.Agents, s.view(a))
	}
	return resp, nil
}

// toDrain returns the agents that a request selects.
func (s *agentCalls) toDrain(ctx context.Context, req *agboxv1.DrainAgentsRequest) ([]ledger.Agent, error) {
	ways := 0
	for _, given := range []bool{len(req.GetAgentIds()) > 0, req.GetSandboxId() != "", req.GetAll()} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return nil, invalid("Say which agents to drain: give one of agent_ids, sandbox_id and all.")
	}
	switch {
	case req.GetAll():
		return s.ledger.Living(), nil
	case req.GetSandboxId() != "":
		sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
		if err != nil {
			return nil, err
		}
		return s.ledger.LivingIn(sb.ID), nil
	}
	var named []ledger.Agent
	for _, ref := range req.GetAgentIds() {
		a, err := s.ledger.FindAgent(ref)
		if err != nil {
			return nil, err
		}
		if a.Over() {
			_, err := s.ledger.RequestDrain(ctx, a.ID) // says why that is not possible
			return nil, err
		}
		named = append(named, a)
	}
	return named, nil
}
