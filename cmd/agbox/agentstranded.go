package main

import (
	"cmp"
	"context"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// whileWaiting runs wait, which waits for the end of the agent with that id, and says once if
// the agent is ORPHANED meanwhile: then it may wait for a decision of the same person.
func (a *app) whileWaiting(ctx context.Context, c *client.Client, id string, wait func() error) error {
	watching, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		a.watchOrphaned(watching, c, id)
	}()
	defer func() { stop(); <-over }()
	return wait()
}

// watchOrphaned returns when it has said that the agent is ORPHANED, when the agent has ended, and
// with any error: the wait meets it, too.
func (a *app) watchOrphaned(ctx context.Context, c *client.Client, id string) {
	g, err := c.GetAgent(ctx, id)
	if err != nil || a.sayOrphaned(g) {
		return
	}
	known := g.GetLastSequence()
	for ev, err := range c.WatchAgents(ctx, id, 0) {
		if err != nil || ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED {
			return
		}
		if ev.GetSequence() <= known || ev.GetPause().GetReason() != agboxv1.PauseReason_PAUSE_REASON_ORPHANED {
			continue
		}
		// It may have gone on meanwhile.
		if g, err = c.GetAgent(ctx, id); err != nil || a.sayOrphaned(g) {
			return
		}
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
