package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
)

// agentCalls is AgentService.
type agentCalls struct {
	agboxv1.UnimplementedAgentServiceServer
	ledger    *ledger.Ledger
	loop      Loop
	admission *admission.Controller
	life      *lifetime
}

// SpawnAgent accepts an agent.
func (s *agentCalls) SpawnAgent(ctx context.Context, req *agboxv1.SpawnAgentRequest) (*agboxv1.SpawnAgentResponse, error) {
	spec := req.GetSpec()
	if spec == nil {
		spec = new(agboxv1.AgentSpec)
	}
	if err := checkAgent(spec); err != nil {
		return nil, err
	}
	n := ledger.NewAgent{ID: req.GetAgentId(), Name: spec.GetName(), Spec: spec}
	if n.ID == "" {
		n.ID = ids.New()
	}
	if err := s.place(ctx, req, &n); err != nil {
		return nil, err
	}
	a, err := s.ledger.SpawnAgent(ctx, n)
	if err != nil {
		return nil, err
	}
	if n.Own != nil {
		s.loop.Enqueue(n.SandboxID)
	}
	s.loop.EnqueueAgent(a.ID)
	return &agboxv1.SpawnAgentResponse{Agent: s.view(a)}, nil
}

// place decides in which sandbox the agent runs. An own one is resolved and admitted as in
// CreateSandbox.
func (s *agentCalls) place(ctx context.Context, req *agboxv1.SpawnAgentRequest, n *ledger.NewAgent) error {
	own := req.GetSandbox()
	switch {
	case req.GetSandboxId() != "" && own != nil:
		return invalid("sandbox_id and sandbox exclude each other: give one of them.")
	case req.GetSandboxId() != "":
		sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
		n.SandboxID = sb.ID
		return err
	case own == nil:
		return invalid("Give sandbox_id, the sandbox in which the agent runs, or sandbox, from which one is made for it.")
	case own.GetSandboxId() != "" || own.GetRequestKey() != "":
		return invalid("The sandbox of an agent gets its id from the agent: leave out sandbox_id and request_key.")
	}
	n.SandboxID = "agent-" + n.ID
	if known, again := s.ledger.Agent(n.ID); again {
		n.Own = own.GetCreateSpec() // accepted before; only that there is one is compared
		n.SandboxID = known.SandboxID
		return nil
	}
	own = proto.CloneOf(own)
	own.SandboxId = n.SandboxID
	var err error
	n.Own, err = s.admission.Admit(ctx, n.SandboxID, own)
	return err
}

// checkAgent checks what the rules of the message cannot say.
func checkAgent(spec *agboxv1.AgentSpec) error {
	if len(spec.GetCommand()) == 0 || spec.GetCommand()[0] == "" {
		return invalid("An agent needs a command: give the program that it runs.")
	}
	for name := range spec.GetEnvs() {
		if secrets.Named(name) {
			return invalid("The variable %s is a secret: give it to the sandbox, where it is encrypted. The agent's program gets it too.", name)
		}
	}
	beat := agent.RulesOf(spec).Heartbeat
	if beat.Interval <= 0 || beat.Stale <= beat.Interval || beat.Escalate <= beat.Stale || beat.Crashed <= beat.Escalate || beat.Zombie <= beat.Crashed {
		return invalid("The times of heartbeat must ascend: interval %s, stale %s, escalate %s, crashed %s, zombie %s.",
			beat.Interval, beat.Stale, beat.Escalate, beat.Crashed, beat.Zombie)
	}
	for _, d := range spec.GetRetry().GetDelays() {
		if d.AsDuration() < 0 {
			return invalid("A pause of retry.delays is negative: %s.", d.AsDuration())
		}
	}
	return nil
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
	resp := new(agboxv1.ListAgentsResponse)
	for _, a := range s.ledger.Agents(func(a ledger.Agent) bool {
		return (req.GetAll() || !a.Over() && a.ID != agent.Init) && (in == "" || a.SandboxID == in) && (req.GetClass() == "" || a.Class == req.GetClass())
	}) {
		resp.Agents = append(resp.Agents, s.view(a))
	}
	return resp, nil
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
	if a, err = s.ledger.RequestKill(ctx, a.ID, &agboxv1.AgentKill{Mode: mode, By: "a user"}); err != nil {
		return nil, err
	}
	s.loop.EnqueueAgent(a.ID)
	return s.answer(a), nil
}

// ResumeAgent records the decision about an orphaned agent.
func (s *agentCalls) ResumeAgent(ctx context.Context, req *agboxv1.ResumeAgentRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if a, err = s.ledger.ResolveAgent(ctx, a.ID, req.GetVerdict()); err != nil {
		return nil, err
	}
	s.loop.EnqueueAgent(a.ID)
	return s.answer(a), nil
}

// DeleteAgent removes an agent that has ended.
func (s *agentCalls) DeleteAgent(ctx context.Context, req *agboxv1.DeleteAgentRequest) (*agboxv1.GetAgentResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if sb, living := s.ledger.Sandbox(a.SandboxID); living && a.Owned && a.Over() {
		if _, err := s.ledger.RequestDelete(ctx, sb.ID); err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		s.loop.Interrupt(sb.ID)
	}
	if a, err = s.ledger.DeleteAgent(ctx, a.ID); err != nil {
		return nil, err
	}
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
func openBreakers(root agent.Record) string {
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
		Word: a.Word(), Message: a.Done.GetMessage(), SandboxId: a.SandboxID, Owned: a.Owned, Incarnation: a.Incarnations,
		ExecId: agent.ExecID(a.ID, a.Incarnations), Running: a.Incarnation != nil, Crashes: a.Crashes,
		CreatedAt: timestamppb.New(a.CreatedAt), StateChangedAt: timestamppb.New(a.StateChangedAt),
		Progress: a.Progress, Checkpoint: a.Checkpoint, Liveness: a.Liveness, Context: a.Context,
		LastSequence: a.LastSequence,
	}
	if a.Incarnations == 0 {
		view.ExecId = ""
	}
	if !a.Over() {
		view.Degraded = s.loop.AgentTrouble(a.ID)
	}
	if p := a.Pause; p != nil {
		view.PauseReason, view.Message = p.Reason, p.Message
		if !p.WakeAt.IsZero() && a.Incarnation == nil {
			view.WakeAt = timestamppb.New(p.WakeAt)
		}
	}
	if a.ID == agent.Init {
		view.Message = openBreakers(a.Record)
	}
	if a.Over() {
		view.EndedAt = timestamppb.New(a.EndedAt)
	}
	return view
}
