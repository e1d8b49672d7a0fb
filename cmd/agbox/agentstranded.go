package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// whileWaiting runs wait, which waits for the end of the agent with that id, with tree also for that
// of all below it, and says once of each that is ORPHANED meanwhile: then it may wait for a decision
// of the same person.
func (a *app) whileWaiting(ctx context.Context, c *client.Client, id string, tree bool, wait func() error) error {
	watching, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		o := orphanWatch{app: a, c: c, root: id, within: map[string]bool{id: true}, said: make(map[string]bool)}
		o.run(watching, tree)
	}()
	defer func() { stop(); <-over }()
	return wait()
}

// orphanWatch tells of agents that are ORPHANED.
type orphanWatch struct {
	app  *app
	c    *client.Client
	root string
	// within has the agents that are waited for, and said those of which it was told.
	within, said map[string]bool
}

// run returns when the wait is over, and with any error: the wait meets it, too. For an agent
// without those below it, it also returns when that has ended or was told of.
func (o orphanWatch) run(ctx context.Context, tree bool) {
	o.look(ctx, o.root)
	if !tree {
		if !o.said[o.root] {
			_ = o.follow(ctx, o.root, 0)
		}
		return
	}
	below, err := o.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{Below: o.root})
	if err != nil {
		return
	}
	for _, g := range below {
		o.within[g.GetAgentId()] = true
		o.said[g.GetAgentId()] = o.app.sayOrphaned(g)
	}
	if errors.Is(o.follow(ctx, "", o.spawnedAt(ctx)), client.ErrOutOfRange) {
		_ = o.follow(ctx, "", 0)
	}
}

// spawnedAt is the position of the first event of the root: what is below it came later.
func (o orphanWatch) spawnedAt(ctx context.Context) uint64 {
	for ev, err := range o.c.WatchAgents(ctx, o.root, 0) {
		if err != nil {
			return 0
		}
		return ev.GetPosition()
	}
	return 0
}

// follow follows the events of the agent of, or of all if that is empty, after a position.
func (o orphanWatch) follow(ctx context.Context, of string, after uint64) error {
	for ev, err := range o.c.WatchAgents(ctx, of, after) {
		if err != nil {
			return err
		}
		id := ev.GetAgentId()
		switch {
		case ev.GetType() == agboxv1.AgentEventType_AGENT_SPAWNED && o.within[ev.GetSpawned().GetParent()]:
			o.within[id] = true
		case of != "" && ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED:
			return nil
		}
		if o.within[id] && ev.GetPause().GetReason() == agboxv1.PauseReason_PAUSE_REASON_ORPHANED {
			o.look(ctx, id) // it may have gone on meanwhile
		}
		if of != "" && o.said[id] {
			return nil
		}
	}
	return nil
}

// look tells of an agent if it is ORPHANED now, but once.
func (o orphanWatch) look(ctx context.Context, id string) {
	if o.said[id] {
		return
	}
	if g, err := o.c.GetAgent(ctx, id); err == nil {
		o.said[id] = o.app.sayOrphaned(g)
	}
}

// sayOrphaned says how to decide about an agent, if it is ORPHANED.
func (a *app) sayOrphaned(g *agboxv1.Agent) bool {
	if g.GetPauseReason() != agboxv1.PauseReason_PAUSE_REASON_ORPHANED || g.GetEndedAt() != nil {
		return false
	}
	name := printable(cmp.Or(g.GetName(), g.GetAgentId()))
	a.say("Agent %s is ORPHANED: %s To decide: agbox agent resolve {--revive | --reap} %[1]s", name, g.GetMessage())
	return true
}
