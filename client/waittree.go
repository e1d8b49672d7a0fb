package client

import (
	"context"
	"errors"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// WaitAgentTree waits until an agent and all agents below it have ended, also those that are
// spawned meanwhile, and those that others adopt. It calls each with every one of them when it
// has ended, a parent not necessarily after its children. An agent that was removed is left out.
// It ends with the first error, also of each.
func (c *Client) WaitAgentTree(ctx context.Context, agent string, each func(*agboxv1.Agent) error) error {
	root, err := c.GetAgent(ctx, agent)
	if err != nil {
		return err
	}
	// Events come in the order of commits. So the spawn of a child comes before the end of its
	// parent, and once all known ones have ended there are no others.
	living, known := 0, make(map[string]bool)
	for ev, err := range c.WatchAgents(ctx, "", 0) {
		if err != nil {
			return err
		}
		id := ev.GetAgentId()
		if s := ev.GetSpawned(); s != nil && !known[id] && (id == root.GetAgentId() || known[s.GetParent()]) {
			known[id] = true
			living++
		}
		if !known[id] || ev.GetType() != agboxv1.AgentEventType_AGENT_ENDED {
			continue
		}
		a, err := c.GetAgent(ctx, id)
		if err == nil {
			if err := each(a); err != nil {
				return err
			}
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if living--; living == 0 {
			return nil
		}
	}
	return ctx.Err()
}
