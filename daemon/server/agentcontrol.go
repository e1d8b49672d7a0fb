package server

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// request records a request of the user and enqueues the agent.
func (s *agentCalls) request(ref string, record func(id string) (ledger.Agent, error)) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(ref)
	if err != nil {
		return nil, err
	}
	if a, err = record(a.ID); err != nil {
		return nil, err
	}
	s.loop.EnqueueAgent(a.ID)
	return s.answer(a), nil
}

// KillAgent records the wish to end an agent.
func (s *agentCalls) KillAgent(ctx context.Context, req *agboxv1.KillAgentRequest) (*agboxv1.GetAgentResponse, error) {
	mode := cmp.Or(req.GetMode(), agboxv1.KillMode_KILL_MODE_TERMINATE)
	return s.request(req.GetAgentId(), func(id string) (ledger.Agent, error) {
		return s.ledger.RequestKill(ctx, id, &agboxv1.AgentKill{Mode: mode, By: "a user", Cascade: req.GetCascade()})
	})
}

// ResumeAgent wakes an agent, or records the decision about an orphaned one.
func (s *agentCalls) ResumeAgent(ctx context.Context, req *agboxv1.ResumeAgentRequest) (*agboxv1.GetAgentResponse, error) {
	return s.request(req.GetAgentId(), func(id string) (ledger.Agent, error) {
		switch verdict := req.GetVerdict(); verdict {
		case agboxv1.AgentVerdict_AGENT_VERDICT_RESUME:
			return s.ledger.WakeAgent(ctx, id)
		case agboxv1.AgentVerdict_AGENT_VERDICT_APPROVE:
			return s.ledger.ApproveAgent(ctx, id, agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED, req.GetMessage())
		case agboxv1.AgentVerdict_AGENT_VERDICT_DENY:
			return s.ledger.ApproveAgent(ctx, id, agboxv1.AgentApproval_AGENT_APPROVAL_DENIED, req.GetMessage())
		default:
			return s.ledger.ResolveAgent(ctx, id, verdict)
		}
	})
}

// PauseAgent pauses an agent until somebody approves or denies.
func (s *agentCalls) PauseAgent(ctx context.Context, req *agboxv1.PauseAgentRequest) (*agboxv1.GetAgentResponse, error) {
	return s.request(req.GetAgentId(), func(id string) (ledger.Agent, error) {
		return s.ledger.PauseAgent(ctx, id, cmp.Or(req.GetMessage(), "A user paused it."))
	})
}

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
	return s.request(req.GetAgentId(), func(id string) (ledger.Agent, error) {
		return s.ledger.CloseHold(ctx, id, agents.ClientHolder(req.GetHold()), "the client closed it")
	})
}

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
