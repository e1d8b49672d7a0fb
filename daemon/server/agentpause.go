package server

import (
	"cmp"
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// approvals has the decisions by the verdicts of requests.
var approvals = map[agboxv1.AgentVerdict]agboxv1.AgentApproval{
	agboxv1.AgentVerdict_AGENT_VERDICT_APPROVE: agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED,
	agboxv1.AgentVerdict_AGENT_VERDICT_DENY:    agboxv1.AgentApproval_AGENT_APPROVAL_DENIED,
}

// PauseAgent pauses an agent until somebody approves or denies.
func (s *agentCalls) PauseAgent(ctx context.Context, req *agboxv1.PauseAgentRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if a, err = s.ledger.PauseAgent(ctx, a.ID, cmp.Or(req.GetMessage(), "A user paused it.")); err != nil {
		return nil, err
	}
	s.loop.EnqueueAgent(a.ID)
	return s.answer(a), nil
}
