package server

import (
	"cmp"
	"context"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// DeleteAgent removes an agent that has ended.
func (s *agentCalls) DeleteAgent(ctx context.Context, req *agboxv1.DeleteAgentRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	removed := []ledger.Agent{a}
	if req.GetCascade() {
		removed, err = s.ledger.DeleteAgentTree(ctx, a.ID)
	} else {
		removed[0], err = s.ledger.DeleteAgent(ctx, a.ID)
	}
	if err != nil {
		return nil, err
	}
	for _, a := range removed {
		if a.Owned {
			s.loop.Interrupt(a.SandboxID)
		}
		_ = s.checkpoints.Remove(a.ID) // package retention repeats it
	}
	return s.answer(removed[0]), nil
}

// names lists agents by their names, or by their ids if they have none.
func (s *agentCalls) names(ids []string) string {
	var names []string
	for _, id := range ids {
		a, _ := s.ledger.Agent(id)
		names = append(names, cmp.Or(a.Name, id))
	}
	return strings.Join(names, ", ")
}
