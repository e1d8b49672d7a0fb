package client

import (
	"context"
	"errors"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
	_, err = unary(ctx, c, agentMethod(c, agboxv1.AgentServiceClient.DeleteAgent), in, idempotent)
	if errors.Is(err, ErrNotFound) {
		return nil // removed since; possibly by a call whose answer was lost
	}
	return err
}
