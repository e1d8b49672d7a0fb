package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
)

// ReapAgents looks at all agents at once.
func (s *agentCalls) ReapAgents(context.Context, *agboxv1.ReapAgentsRequest) (*agboxv1.ReapAgentsResponse, error) {
	agents, files := s.loop.ReapAgents()
	resp := &agboxv1.ReapAgentsResponse{Agents: uint32(agents), Files: uint32(files)}
	for _, a := range s.ledger.Living() {
		if a.Orphaned() && !a.Pause.Woken && agent.RulesOf(a.Spec).Revival == agent.Ask {
			resp.Waiting = append(resp.Waiting, s.view(a))
		}
	}
	return resp, nil
}
