package client

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// SpawnAgent starts an agent and returns when it is accepted, in state PENDING. It sets
// agent_id if that is empty, so repeating the call after a lost answer does not start a
// second agent.
func (c *Client) SpawnAgent(ctx context.Context, in *agboxv1.SpawnAgentRequest) (*agboxv1.Agent, error) {
	if in.GetAgentId() == "" {
		in.AgentId = NewID()
	}
	return agentOf(c.agents.SpawnAgent(ctx, in, idempotent))
}

// GetAgent returns one agent with its spec.
func (c *Client) GetAgent(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	return agentOf(c.agents.GetAgent(ctx, &agboxv1.GetAgentRequest{AgentId: agent}, idempotent))
}

// ListAgents returns the agents that the request selects, oldest first.
func (c *Client) ListAgents(ctx context.Context, in *agboxv1.ListAgentsRequest) ([]*agboxv1.Agent, error) {
	out, err := c.agents.ListAgents(ctx, in, idempotent)
	return out.GetAgents(), err
}

// KillAgent ends an agent. It returns when the request is recorded; WaitAgent waits until
// it is done.
func (c *Client) KillAgent(ctx context.Context, agent string, mode agboxv1.KillMode) (*agboxv1.Agent, error) {
	return c.KillAgentAs(ctx, &agboxv1.KillAgentRequest{AgentId: agent, Mode: mode})
}

// KillAgentAs is KillAgent with all fields of the request, which say for example what becomes
// of the children.
func (c *Client) KillAgentAs(ctx context.Context, in *agboxv1.KillAgentRequest) (*agboxv1.Agent, error) {
	return agentOf(c.agents.KillAgent(ctx, in, idempotent))
}

// ResolveAgent decides about an agent that is ORPHANED: it goes on in a new incarnation, or
// it ends. It returns when the decision is recorded.
func (c *Client) ResolveAgent(ctx context.Context, agent string, verdict agboxv1.AgentVerdict) (*agboxv1.Agent, error) {
	return agentOf(c.agents.ResumeAgent(ctx, &agboxv1.ResumeAgentRequest{AgentId: agent, Verdict: verdict}))
}

// PauseAgent pauses an agent until DecideAgent. message says why, for whoever decides. It
// returns when the pause is recorded.
func (c *Client) PauseAgent(ctx context.Context, agent, message string) (*agboxv1.Agent, error) {
	return agentOf(c.agents.PauseAgent(ctx, &agboxv1.PauseAgentRequest{AgentId: agent, Message: message}, idempotent))
}

// DecideAgent approves or denies what an agent waits for. message says why, for the agent. It
// returns when the decision is recorded.
func (c *Client) DecideAgent(ctx context.Context, agent string, verdict agboxv1.AgentVerdict, message string) (*agboxv1.Agent, error) {
	return agentOf(c.agents.ResumeAgent(ctx, &agboxv1.ResumeAgentRequest{AgentId: agent, Verdict: verdict, Message: message}))
}

// DeleteAgent removes an agent that has ended.
func (c *Client) DeleteAgent(ctx context.Context, agent string) error {
	return c.deleteAgent(ctx, agent, false)
}

// ListCheckpoints returns the checkpoints of an agent that are kept, oldest first.
func (c *Client) ListCheckpoints(ctx context.Context, agent string) ([]*agboxv1.AgentCheckpoint, error) {
	out, err := c.agents.ListCheckpoints(ctx, &agboxv1.ListCheckpointsRequest{AgentId: agent}, idempotent)
	return out.GetCheckpoints(), err
}

// GetCheckpoint returns a checkpoint of an agent and its file, of at most 17 MiB. 0 means the
// newest one that is whole.
func (c *Client) GetCheckpoint(ctx context.Context, agent string, seq uint64) (info *agboxv1.AgentCheckpoint, file []byte, err error) {
	err = follow(ctx, c, c.agents.GetCheckpoint, ends, func() *agboxv1.GetCheckpointRequest {
		info, file = nil, nil
		return &agboxv1.GetCheckpointRequest{AgentId: agent, Seq: seq}
	}, func(m *agboxv1.GetCheckpointResponse) (bool, error) {
		if m.GetCheckpoint() != nil {
			info = m.GetCheckpoint()
		}
		file = append(file, m.GetData()...)
		return false, nil
	})
	return info, file, err
}

// WatchAgents replays and follows the events of all agents, or of one, in commit order and
// without gaps or duplicates, even if the daemon restarts. It starts after a position; 0
// means everything that is kept. It ends with an error, or when the caller ends its loop. If
// it would skip events that are no longer kept, the error is ErrOutOfRange.
func (c *Client) WatchAgents(ctx context.Context, agent string, after uint64) iter.Seq2[*agboxv1.AgentEvent, error] {
	return sequence(func(give func(*agboxv1.AgentEvent) bool) error {
		return follow(ctx, c, c.agents.WatchAgents, endless, func() *agboxv1.WatchAgentsRequest {
			return &agboxv1.WatchAgentsRequest{AgentId: agent, AfterPosition: after}
		}, func(m *agboxv1.WatchAgentsResponse) (bool, error) {
			if m.GetEvent() == nil || m.GetPosition() <= after {
				return false, nil
			}
			after = m.GetPosition()
			return !give(m.GetEvent()), nil
		})
	})
}

// AgentTree returns an agent and its descendants, those that have ended too, each after its
// parent, and the children of an agent oldest first. "init" is the root of all agents.
func (c *Client) AgentTree(ctx context.Context, agent string) ([]*agboxv1.Agent, error) {
	root, below := &agboxv1.Agent{AgentId: "init", Name: "init", Word: "ROOT"}, ""
	if agent != root.GetAgentId() {
		below = agent
		var err error
		if root, err = c.GetAgent(ctx, agent); err != nil {
			return nil, err
		}
	}
	all, err := c.ListAgents(ctx, &agboxv1.ListAgentsRequest{All: true, Below: below})
	if err != nil {
		return nil, err
	}
	children := make(map[string][]*agboxv1.Agent)
	for _, g := range all {
		if g.GetAgentId() == root.GetAgentId() {
			root = g
		} else {
			children[g.GetParent()] = append(children[g.GetParent()], g)
		}
	}
	return withDescendants(nil, root, children), nil
}

// withDescendants appends an agent and those below it.
func withDescendants(list []*agboxv1.Agent, g *agboxv1.Agent, children map[string][]*agboxv1.Agent) []*agboxv1.Agent {
	list = append(list, g)
	for _, child := range children[g.GetAgentId()] {
		list = withDescendants(list, child, children)
	}
	return list
}

// DeleteAgentTree removes an agent and its descendants, all of which must have ended.
func (c *Client) DeleteAgentTree(ctx context.Context, agent string) error {
	return c.deleteAgent(ctx, agent, true)
}

// deleteAgent removes an agent.
func (c *Client) deleteAgent(ctx context.Context, agent string, cascade bool) error {
	// The call is repeated with the id: the name may be another agent's by then.
	a, err := c.GetAgent(ctx, agent)
	if err != nil {
		return err
	}
	in := &agboxv1.DeleteAgentRequest{AgentId: a.GetAgentId(), Cascade: cascade}
	_, err = c.agents.DeleteAgent(ctx, in, idempotent)
	if errors.Is(err, ErrNotFound) {
		return nil // removed since; possibly by a call whose answer was lost
	}
	return err
}

// DrainAgents lets the incarnations of agents save their work and exit. The agents are then
// PAUSED until WakeAgent. It returns when the requests are recorded, with the selected
// agents; WaitAgentHalted waits until it is done.
func (c *Client) DrainAgents(ctx context.Context, in *agboxv1.DrainAgentsRequest) ([]*agboxv1.Agent, error) {
	out, err := c.agents.DrainAgents(ctx, in, idempotent)
	return out.GetAgents(), err
}

// WakeAgent lets an agent go on that was drained. It returns when the request is recorded.
func (c *Client) WakeAgent(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	return c.ResolveAgent(ctx, agent, agboxv1.AgentVerdict_AGENT_VERDICT_RESUME)
}

// WaitAgentHalted waits until an agent is PAUSED without a running incarnation, or has
// ended, and returns it.
func (c *Client) WaitAgentHalted(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	halted := func(a *agboxv1.Agent) bool {
		return a.GetEndedAt() != nil || a.GetState() == agboxv1.AgentState_AGENT_STATE_PAUSED && !a.GetRunning()
	}
	return c.untilAgent(ctx, agent, halted)
}

// untilAgent waits by the events of an agent until it is as is says, or was removed.
func (c *Client) untilAgent(ctx context.Context, agent string, is func(*agboxv1.Agent) bool) (*agboxv1.Agent, error) {
	a, err := c.GetAgent(ctx, agent)
	if err != nil || is(a) {
		return a, err
	}
	for ev, err := range c.WatchAgents(ctx, a.GetAgentId(), 0) {
		if err != nil {
			return nil, err
		}
		switch ev.GetType() {
		case agboxv1.AgentEventType_AGENT_PAUSED, agboxv1.AgentEventType_AGENT_ENDED, agboxv1.AgentEventType_AGENT_DELETED:
			if a, err = c.GetAgent(ctx, a.GetAgentId()); err != nil || is(a) {
				return a, err
			}
		}
	}
	return c.GetAgent(ctx, a.GetAgentId())
}

// AgentHold is a hold of a client on an agent.
type AgentHold struct {
	// Agent is the id of the agent.
	Agent string
	// Name of the hold. NewID makes one.
	Name string
	// Linger is how long the hold stays after the connection was lost, at most a day. 0 means
	// 30 s.
	Linger time.Duration
}

// HoldAgent holds an agent with lifetime held as long as the sequence is read. It yields the
// agent when it is held and, as the last item, when it has ended or the hold was closed. If the
// daemon goes away, the client waits for it and holds the agent again, so that a restart of the
// daemon does not suspend it. When the reader stops, or ctx ends, the hold lingers; CloseHold
// ends it at once.
func (c *Client) HoldAgent(ctx context.Context, h AgentHold) iter.Seq2[*agboxv1.Agent, error] {
	return sequence(func(give func(*agboxv1.Agent) bool) error {
		in := &agboxv1.HoldAgentRequest{AgentId: h.Agent, Hold: h.Name}
		if h.Linger > 0 {
			in.Linger = durationpb.New(h.Linger)
		}
		return follow(ctx, c, c.agents.HoldAgent, endless, func() *agboxv1.HoldAgentRequest { return in }, func(m *agboxv1.HoldAgentResponse) (bool, error) {
			held := slices.Contains(m.GetAgent().GetHolders(), "client:"+h.Name)
			return !give(m.GetAgent()) || !held || m.GetAgent().GetEndedAt() != nil, nil
		})
	})
}

// CloseHold ends a hold at once: if nobody else holds the agent, its work is saved and it is
// SUSPENDED.
func (c *Client) CloseHold(ctx context.Context, agent, hold string) (*agboxv1.Agent, error) {
	return agentOf(c.agents.CloseHold(ctx, &agboxv1.CloseHoldRequest{AgentId: agent, Hold: hold}, idempotent))
}

// WaitAgent waits until an agent has ended, and returns it.
func (c *Client) WaitAgent(ctx context.Context, agent string) (*agboxv1.Agent, error) {
	var ended *agboxv1.Agent
	err := c.waitAgent(ctx, &agboxv1.WaitAgentRequest{AgentId: agent}, func(a *agboxv1.Agent) error {
		ended = a
		return nil
	})
	if e, ok := errors.AsType[*Error](err); ok && e.Code == codes.Unimplemented {
		return c.untilAgent(ctx, agent, func(a *agboxv1.Agent) bool { return a.GetEndedAt() != nil }) // an older daemon
	}
	if err == nil && ended == nil {
		return c.GetAgent(ctx, agent) // which says that it was removed
	}
	return ended, err
}

// WaitAgentTree waits until an agent and all agents below it have ended, also those that are
// spawned meanwhile, and those that others adopt. It calls each with every one of them when it
// has ended, a parent not necessarily after its children. An agent that was removed is left out;
// the one that is named is ErrNotFound only if all below it were removed too.
// It ends with the first error, also of each.
func (c *Client) WaitAgentTree(ctx context.Context, agent string, each func(*agboxv1.Agent) error) error {
	return c.waitAgent(ctx, &agboxv1.WaitAgentRequest{AgentId: agent, Tree: true}, each)
}

// waitAgent calls each with every agent of a wait once.
func (c *Client) waitAgent(ctx context.Context, in *agboxv1.WaitAgentRequest, each func(*agboxv1.Agent) error) error {
	told := make(map[string]bool) // a stream that is opened again begins anew
	return follow(ctx, c, c.agents.WaitAgent, ends, func() *agboxv1.WaitAgentRequest { return in }, func(m *agboxv1.WaitAgentResponse) (bool, error) {
		id := m.GetAgent().GetAgentId()
		if told[id] {
			return false, nil
		}
		told[id] = true
		return false, each(m.GetAgent())
	})
}

// ReapAgents has the daemon look at all agents at once, as it does by itself every few
// seconds, and returns what it found.
func (c *Client) ReapAgents(ctx context.Context) (*agboxv1.ReapAgentsResponse, error) {
	return c.agents.ReapAgents(ctx, new(agboxv1.ReapAgentsRequest), idempotent)
}

// Leases returns what an agent holds and asks for, or what all do if agent is empty, by
// resource.
func (c *Client) Leases(ctx context.Context, agent string) ([]*agboxv1.LeaseEntry, error) {
	out, err := c.agents.ListLeases(ctx, &agboxv1.ListLeasesRequest{AgentId: agent}, idempotent)
	return out.GetLeases(), err
}

// BreakLease takes a resource away from an agent, whose program is not told.
func (c *Client) BreakLease(ctx context.Context, agent, resource string) (*agboxv1.Agent, error) {
	return agentOf(c.agents.BreakLease(ctx, &agboxv1.BreakLeaseRequest{AgentId: agent, Resource: resource}))
}

func agentOf(out interface{ GetAgent() *agboxv1.Agent }, err error) (*agboxv1.Agent, error) {
	return out.GetAgent(), err
}
