package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// ReapAgents looks at all agents at once.
func (s *agentCalls) ReapAgents(context.Context, *agboxv1.ReapAgentsRequest) (*agboxv1.ReapAgentsResponse, error) {
	count, files := s.loop.ReapAgents()
	resp := &agboxv1.ReapAgentsResponse{Agents: uint32(count), Files: uint32(files)}
	for _, a := range s.ledger.Living() {
		if a.Orphaned() && !a.Pause.Woken && agents.RulesOf(a.Spec).Revival == agents.Ask {
			resp.Waiting = append(resp.Waiting, s.view(a))
		}
	}
	return resp, nil
}
