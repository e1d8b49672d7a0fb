package server

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

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

// inherit gives a new agent a copy of the checkpoint with which it begins. It returns false
// if the agent exists already.
func (s *agentCalls) inherit(req *agboxv1.SpawnAgentRequest, n *ledger.NewAgent) (bool, error) {
	if req.GetFromAgent() == "" {
		if req.GetFromCheckpoint() != 0 {
			return false, invalid("from_checkpoint is a checkpoint of from_agent: give both.")
		}
		return false, nil
	}
	if known, again := s.ledger.Agent(n.ID); again {
		n.FromAgent, n.FromCheckpoint = known.FromAgent, known.FromCheckpoint // compared by their names only
	}
	from, err := s.ledger.FindAgent(req.GetFromAgent())
	if err != nil {
		return false, err
	}
	if n.FromAgent == from.ID && (req.GetFromCheckpoint() == 0 || req.GetFromCheckpoint() == n.FromCheckpoint) {
		return false, nil
	}
	c, file, err := s.checkpoint(from, req.GetFromCheckpoint())
	if err != nil {
		return false, err
	}
	_ = file.Close()
	n.FromAgent, n.FromCheckpoint = from.ID, c.GetSeq()
	n.Checkpoint = proto.CloneOf(c)
	n.Checkpoint.Seq = 1
	if _, again := s.ledger.Agent(n.ID); again {
		return false, nil // refused, because it was spawned with another checkpoint
	}
	return true, s.checkpoints.Adopt(n.ID, from.ID, c)
}
