package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/checkpoints"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/spec/document"
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
	checkpoints *checkpoints.Store
}

// SpawnAgent accepts an agent.
func (s *agentCalls) SpawnAgent(ctx context.Context, req *agboxv1.SpawnAgentRequest) (*agboxv1.SpawnAgentResponse, error) {
	n := ledger.NewAgent{ID: req.GetAgentId(), Reach: req.GetReach()}
	if n.ID == "" {
		n.ID = ids.New()
	}
	if err := s.place(ctx, req, &n); err != nil {
		return nil, err
	}
	if len(n.Spec.GetCommand()) == 0 {
		return nil, invalid("An agent needs a command: give the program that it runs, or write it into the sandbox file, as command in the block agent.")
	}
	n.Name = n.Spec.GetName()
	if req.GetHold() != "" {
		n.Holder, n.Linger = agents.ClientHolder(req.GetHold()), agents.HoldLinger
	}
	inherited, err := s.inherit(req, &n)
	if err != nil {
		return nil, err
	}
	a, err := s.ledger.SpawnAgent(ctx, n)
	if err != nil {
		if _, exists := s.ledger.Agent(n.ID); inherited && !exists {
			err = errors.Join(err, s.checkpoints.Remove(n.ID))
		}
		return nil, err
	}
	if n.Own != nil {
		s.loop.Enqueue(n.SandboxID)
	}
	s.loop.EnqueueAgent(a.ID)
	return &agboxv1.SpawnAgentResponse{Agent: s.view(a)}, nil
}

// place decides in which sandbox the agent runs, and sets its spec: the fields of the
// request over the block "agent" of the sandbox.
func (s *agentCalls) place(ctx context.Context, req *agboxv1.SpawnAgentRequest, n *ledger.NewAgent) error {
	switch {
	case req.GetSandboxId() != "" && req.GetSandbox() != nil:
		return invalid("sandbox_id and sandbox exclude each other: give one of them.")
	case req.GetSandbox() != nil:
		return s.placeInOwn(ctx, req, n)
	case req.GetSandboxId() == "":
		return invalid("Give sandbox_id, the sandbox in which the agent runs, or sandbox, from which one is made for it.")
	}
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return err
	}
	n.SandboxID = sb.ID
	if n.Spec, err = s.admission.AgentIn(sb.Spec, req.GetSpec()); err != nil {
		return err
	}
	if _, again := s.ledger.Agent(n.ID); !again {
		n.Work, err = s.admission.Work(sb.Spec, n.Spec)
	}
	return err
}

// placeInOwn resolves and admits the agent's own sandbox as in CreateSandbox. The agent is
// a part of the sandbox's spec, so both are merged and checked together.
func (s *agentCalls) placeInOwn(ctx context.Context, req *agboxv1.SpawnAgentRequest, n *ledger.NewAgent) error {
	if req.GetSandbox().GetSandboxId() != "" || req.GetSandbox().GetRequestKey() != "" {
		return invalid("The sandbox of an agent gets its id from the agent: leave out sandbox_id and request_key.")
	}
	n.SandboxID = "agent-" + n.ID
	own := proto.CloneOf(req.GetSandbox())
	own.SandboxId = n.SandboxID
	if own.CreateSpec == nil {
		own.CreateSpec = new(agboxv1.CreateSpec)
	}
	own.CreateSpec.Agent = over(own.GetCreateSpec().GetAgent(), req.GetSpec())
	if known, again := s.ledger.Agent(n.ID); again {
		n.Own = own.GetCreateSpec() // accepted before; only that there is one is compared
		n.Spec, n.SandboxID = s.admission.AgentOf(own), known.SandboxID
		if n.Spec.GetWork() != "" && known.Spec.GetWork() != "" {
			n.Spec.Work = known.Spec.GetWork() // stored without symbolic links, which may lead elsewhere by now
		}
		return nil
	}
	var err error
	if n.Own, err = s.admission.Admit(ctx, n.SandboxID, own); err != nil {
		return err
	}
	n.Spec = n.Own.GetAgent()
	n.Work, err = s.admission.Work(n.Own, n.Spec)
	return err
}

// over merges the fields of an agent over those of another one.
func over(under, fields *agboxv1.AgentSpec) *agboxv1.AgentSpec {
	if under == nil {
		return fields
	}
	document.Merge(under.ProtoReflect(), &document.Origin{}, fields.ProtoReflect(), document.Describe(fields.ProtoReflect(), &document.Origin{}))
	return under
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

// KillAgent records the wish to end an agent.
func (s *agentCalls) KillAgent(ctx context.Context, req *agboxv1.KillAgentRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	mode := req.GetMode()
	if mode == agboxv1.KillMode_KILL_MODE_UNSPECIFIED {
		mode = agboxv1.KillMode_KILL_MODE_TERMINATE
	}
	if a, err = s.ledger.RequestKill(ctx, a.ID, &agboxv1.AgentKill{Mode: mode, By: "a user", Cascade: req.GetCascade()}); err != nil {
		return nil, err
	}
	s.loop.EnqueueAgent(a.ID)
	return s.answer(a), nil
}

// ResumeAgent wakes an agent, or records the decision about an orphaned one.
func (s *agentCalls) ResumeAgent(ctx context.Context, req *agboxv1.ResumeAgentRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	switch verdict := req.GetVerdict(); verdict {
	case agboxv1.AgentVerdict_AGENT_VERDICT_RESUME:
		a, err = s.ledger.WakeAgent(ctx, a.ID)
	case agboxv1.AgentVerdict_AGENT_VERDICT_APPROVE, agboxv1.AgentVerdict_AGENT_VERDICT_DENY:
		a, err = s.ledger.ApproveAgent(ctx, a.ID, approvals[verdict], req.GetMessage())
	default:
		a, err = s.ledger.ResolveAgent(ctx, a.ID, verdict)
	}
	if err != nil {
		return nil, err
	}
	s.loop.EnqueueAgent(a.ID)
	return s.answer(a), nil
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
