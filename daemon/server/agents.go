package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// agentCalls is AgentService.
type agentCalls struct {
	agboxv1.UnimplementedAgentServiceServer
	ledger       *ledger.Ledger
	loop         Loop
	incarnations Agents
	admission    *admission.Controller
	life         *lifetime
	// output follows the logs of incarnations.
	output      *execCalls
	checkpoints *retention.Checkpoints
}

// GetAgent returns one agent.
func (s *agentCalls) GetAgent(_ context.Context, req *agboxv1.GetAgentRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return s.answer(a), nil
}

func (s *agentCalls) answer(a ledger.Agent) *agboxv1.GetAgentResponse {
	view := s.view(a)
	view.Spec, view.LastEnd = a.Spec, a.Last
	for _, child := range s.ledger.Children(a.ID) {
		view.Children = append(view.Children, child.ID)
	}
	if at := s.incarnations.LastBeat(a); !at.IsZero() {
		view.LastBeat = timestamppb.New(at)
	}
	return &agboxv1.GetAgentResponse{Agent: view}
}

// ListAgents returns agents, oldest first.
func (s *agentCalls) ListAgents(ctx context.Context, req *agboxv1.ListAgentsRequest) (*agboxv1.ListAgentsResponse, error) {
	in := ""
	if req.GetSandboxId() != "" {
		sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
		if err != nil {
			return nil, err
		}
		in = sb.ID
	}
	for _, id := range []string{req.GetParent(), req.GetBelow()} {
		if id == "" || id == agents.Init { // init has no record before it has a history
			continue
		}
		if _, err := s.ledger.FindAgent(id); err != nil {
			return nil, err
		}
	}
	resp := new(agboxv1.ListAgentsResponse)
	for _, a := range s.candidates(req, in) {
		if (req.GetAll() || !a.Over()) && (in == "" || a.SandboxID == in) && (req.GetClass() == "" || a.Class == req.GetClass()) && (req.GetStack() == "" || s.ledger.InStack(a, req.GetStack())) &&
			(req.GetParent() == "" || a.Parent == req.GetParent()) {
			resp.Agents = append(resp.Agents, s.view(a))
		}
	}
	return resp, nil
}

// candidates returns the agents among which are those that a request selects, oldest first. in
// is its sandbox, or empty. All that have ended are looked at only if they are asked for.
func (s *agentCalls) candidates(req *agboxv1.ListAgentsRequest, in string) []ledger.Agent {
	switch {
	case req.GetBelow() != "":
		return s.ledger.Descendants(req.GetBelow())
	case req.GetParent() != "" && req.GetAll():
		return s.ledger.Children(req.GetParent())
	case req.GetParent() != "":
		return s.ledger.LivingChildren(req.GetParent())
	case req.GetAll():
		return s.ledger.Agents(nil)
	case in != "":
		return s.ledger.LivingIn(in)
	}
	return s.ledger.Living()
}

// WatchAgents replays and follows the events of all agents.
func (s *agentCalls) WatchAgents(req *agboxv1.WatchAgentsRequest, stream grpc.ServerStreamingServer[agboxv1.WatchAgentsResponse]) error {
	ctx := stream.Context()
	only := ""
	if req.GetAgentId() != "" {
		a, err := s.ledger.FindAgent(req.GetAgentId())
		if err != nil {
			return err
		}
		only = a.ID
	}
	at, err := s.ledger.OpenAgentEvents(ctx, only, req.GetAfterPosition())
	if err != nil {
		return err
	}
	begun := s.ledger.NewestOfAgents()
	if err := stream.Send(&agboxv1.WatchAgentsResponse{Position: at.At}); err != nil {
		return err
	}
	for {
		changed := s.ledger.AgentChanged(only)
		events, more, err := s.ledger.NextAgentEvents(ctx, at, eventPage)
		if err != nil {
			return err
		}
		for _, ev := range events {
			ev.Replay = ev.GetPosition() <= begun
			if err := stream.Send(&agboxv1.WatchAgentsResponse{Position: ev.GetPosition(), Event: ev}); err != nil {
				return err
			}
		}
		if more {
			continue
		}
		if err := s.life.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// openBreakers says which classes of agents are refused.
func openBreakers(root agents.Record) string {
	var open []string
	for _, class := range slices.Sorted(maps.Keys(root.Breakers)) {
		switch b := root.Breakers[class]; {
		case b.Canary != "":
			open = append(open, fmt.Sprintf("Class %s is refused; canary %s is being tried.", class, b.Canary))
		case b.Open():
			open = append(open, fmt.Sprintf("Class %s is refused until %s.", class, b.Until.UTC().Format(time.RFC3339)))
		}
	}
	return strings.Join(open, " ")
}

// view converts an agent for clients.
func (s *agentCalls) view(a ledger.Agent) *agboxv1.Agent {
	view := &agboxv1.Agent{
		AgentId: a.ID, Name: a.Name, Class: a.Class, Title: a.Spec.GetTitle(), Parent: a.Parent, State: a.State,
		Word: a.Word(), Message: a.Done.GetMessage(), SandboxId: a.SandboxID, Owned: a.Owned, Stack: a.Stack, Border: a.BorderOf(), Scope: a.Scope(), Lifetime: a.Spec.GetLifetime(), Incarnation: a.Incarnations,
		ExecId: agents.ExecID(a.ID, a.Incarnations), Running: a.Incarnation != nil, Crashes: a.Crashes,
		CreatedAt: timestamppb.New(a.CreatedAt), StateChangedAt: timestamppb.New(a.StateChangedAt),
		Progress: a.Progress, Checkpoint: a.Checkpoint(), Liveness: a.Liveness, Context: a.Context,
		LastSequence: a.LastSequence, Unread: uint32(s.ledger.Unread(a.ID)),
	}
	for _, h := range a.Holders {
		view.Holders = append(view.Holders, h.ID)
	}
	if a.Incarnations == 0 {
		view.ExecId = ""
	}
	if a.Incarnation != nil {
		view.Ready = s.loop.AgentReady(a.Incarnation.ExecID)
	}
	view.Degraded = s.loop.AgentTrouble(a.ID)
	if !a.Over() {
		s.incarnations.Show(a, view)
	}
	if view.After = s.ledger.Kin(a).Awaited; len(view.After) > 0 {
		view.Message = "It follows " + s.names(view.After) + "."
	}
	if a.PauseWanted != nil && a.Incarnation != nil {
		view.Message = "It saves its work and is PAUSED then."
	}
	view.Leases = agents.Leases(a.Holds)
	if sum := s.ledger.ChildrenBudget(a); a.ID != agents.Init && sum != (gate.Amount{}) {
		view.ChildrenBudget = &agboxv1.AgentUsage{InputTokens: sum.InputTokens, CostMicroUsd: sum.CostMicroUSD}
	}
	if p := a.Pause; p != nil {
		view.PauseReason, view.Message = p.Reason, a.PauseNote()
		view.Approval, _ = a.Approval()
		view.Observation, view.DigestMissing = a.PendingObservation(), a.DigestMissing()
		if !p.WakeAt.IsZero() && a.Incarnation == nil {
			view.WakeAt = timestamppb.New(p.WakeAt)
		}
	}
	if a.ID == agents.Init {
		view.Message = openBreakers(a.Record)
	}
	if a.Over() {
		view.EndedAt = timestamppb.New(a.EndedAt)
	}
	return view
}

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

// names lists agents by their names, or by their ids if they have none.
func (s *agentCalls) names(ids []string) string {
	var names []string
	for _, id := range ids {
		a, _ := s.ledger.Agent(id)
		names = append(names, cmp.Or(a.Name, id))
	}
	return strings.Join(names, ", ")
}
