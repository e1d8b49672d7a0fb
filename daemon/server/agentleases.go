package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ListLeases returns what agents hold and ask for.
func (s *agentCalls) ListLeases(_ context.Context, req *agboxv1.ListLeasesRequest) (*agboxv1.ListLeasesResponse, error) {
	of := ""
	if req.GetAgentId() != "" {
		a, err := s.ledger.FindAgent(req.GetAgentId())
		if err != nil {
			return nil, err
		}
		of = a.ID
	}
	return &agboxv1.ListLeasesResponse{Leases: s.ledger.Leases(of)}, nil
}

// BreakLease takes a resource away from an agent.
func (s *agentCalls) BreakLease(ctx context.Context, req *agboxv1.BreakLeaseRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if a, err = s.ledger.BreakLease(ctx, a.ID, req.GetResource()); err != nil {
		return nil, err
	}
	return &agboxv1.GetAgentResponse{Agent: s.view(a)}, nil
}
