package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// agentKillOptions say how agents are ended.
type agentKillOptions struct {
	now, graceful, cascade, noCascade bool
}

func (a *app) agentKillCommand() *cobra.Command {
	var o agentKillOptions
	cmd := &cobra.Command{
		Use:   "kill AGENT... [flags]",
		Short: "End agents",
		Long: `End agents: SIGTERM goes to the process group of the program and, 5 seconds later,
SIGKILL to every process that it has started. No further incarnation is begun. Its
children that only it holds are ended too; the others are adopted by its nearest
ancestor that has not ended.

With --graceful the program gets a message of the kind SIGTERM instead, and ends when it
wants to; the command does not wait for that. If it has not acknowledged the message after
30 seconds, it is ended as above.`,
		Args: arguments(1, -1, "an AGENT"),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		if o.now && o.graceful {
			return usagef("%s takes either --now or --graceful.", cmd.CommandPath())
		}
		if o.cascade && o.noCascade {
			return usagef("%s takes either --cascade or --no-cascade.", cmd.CommandPath())
		}
		return a.eachAgent(ctx, c, args, changes, func(id string) error { return o.kill(ctx, c, id) })
	})
	cmd.Flags().BoolVar(&o.now, "now", false, "send SIGKILL at once")
	cmd.Flags().BoolVar(&o.graceful, "graceful", false, "ask the program to end by itself, and do not wait")
	cmd.Flags().BoolVar(&o.cascade, "cascade", false, "end all descendants too")
	cmd.Flags().BoolVar(&o.cascade, "tree", false, "the same as --cascade")
	cmd.Flags().BoolVar(&o.noCascade, "no-cascade", false, "end no descendant")
	return cmd
}

// kill ends an agent, with its descendants if that is asked for, and waits until all of them
// have ended.
func (o *agentKillOptions) kill(ctx context.Context, c *client.Client, id string) error {
	req := &agboxv1.KillAgentRequest{AgentId: id, Mode: agboxv1.KillMode_KILL_MODE_TERMINATE}
	if o.now {
		req.Mode = agboxv1.KillMode_KILL_MODE_NOW
	}
	if o.graceful {
		req.Mode = agboxv1.KillMode_KILL_MODE_GRACEFUL
	}
	switch {
	case o.cascade:
		req.Cascade = agboxv1.KillCascade_KILL_CASCADE_TREE
	case o.noCascade:
		req.Cascade = agboxv1.KillCascade_KILL_CASCADE_NONE
	}
	var tree []*agboxv1.Agent
	if o.cascade { // before some of them are adopted
		list, err := c.AgentTree(ctx, id)
		if err != nil {
			return err
		}
		tree = list
	}
	g, err := c.KillAgentAs(ctx, req)
	if err != nil {
		return err
	}
	switch {
	case o.graceful:
		return nil
	case !o.cascade:
		tree = append(tree, g)
	}
	for _, g := range tree {
		if _, err := c.WaitAgent(ctx, g.GetAgentId()); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) agentRemoveCommand() *cobra.Command {
	var force, cascade bool
	cmd := &cobra.Command{
		Use:   "rm AGENT... [flags]",
		Short: "Remove agents that have ended, with the sandboxes that were made for them",
		Long: `Remove agents that have ended, with the sandboxes that were made for them. An agent
that has children is refused: they are removed before it, or with --cascade. If such a
sandbox has what "agbox rm" would ask about, as changed files that were not brought back,
it asks on a terminal and refuses elsewhere, unless -f is given.`,
		Args: arguments(1, -1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachAgent(ctx, c, args, changes, func(id string) error {
				g, err := c.GetAgent(ctx, id)
				if err != nil {
					return err
				}
				if force && (g.GetEndedAt() == nil || cascade) {
					kill := agentKillOptions{cascade: cascade}
					if err := kill.kill(ctx, c, g.GetAgentId()); err != nil {
						return err
					}
				}
				if !force {
					if err := a.spareWork(ctx, c, g, cascade); err != nil {
						return err
					}
				}
				if cascade {
					return c.DeleteAgentTree(ctx, g.GetAgentId())
				}
				return c.DeleteAgent(ctx, g.GetAgentId())
			})
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask, and end agents first that have not ended")
	cmd.Flags().BoolVar(&cascade, "cascade", false, "remove its descendants too")
	return cmd
}

// spareWork asks about what would be lost with the sandboxes that were made for an agent that has
// ended and, with tree, for its descendants.
func (a *app) spareWork(ctx context.Context, c *client.Client, g *agboxv1.Agent, tree bool) error {
	all, force := []*agboxv1.Agent{g}, "agbox agent rm -f "+agentName(g)
	if tree {
		force += " --cascade"
		var err error
		if all, err = c.AgentTree(ctx, g.GetAgentId()); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(all, func(g *agboxv1.Agent) bool { return g.GetEndedAt() == nil }) {
		return nil // the daemon refuses it, and names what ends the agent
	}
	for _, g := range all {
		if !g.GetOwned() {
			continue
		}
		out, err := c.GetSandbox(ctx, g.GetSandboxId())
		var lost loss
		if err == nil {
			lost, err = losses(ctx, c, out.GetSandbox())
		}
		if err == nil && !lost.none() {
			err = a.mayLose(ctx, out.GetSandbox(), lost, force)
		}
		if err != nil && !errors.Is(err, client.ErrNotFound) {
			return err
		}
	}
	return nil
}

func (a *app) agentReapCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reap",
		Short: "Look at all agents now: record what has ended, remove what is left",
		Long: `Look at all agents now, as the daemon does by itself every 10 seconds: programs that
have ended are recorded, their agents go on or end, and files of ended agents are
removed. It prints the orphaned agents that wait for "agbox agent resolve".`,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			r, err := c.ReapAgents(ctx)
			if err != nil {
				return err
			}
			for _, g := range r.GetWaiting() {
				fmt.Fprintf(a.stdout, "%s is ORPHANED and waits for a decision: agbox agent resolve {--revive | --reap} %[1]s\n", g.GetAgentId())
			}
			return a.printf("Agents looked at: %d. Files of ended agents removed: %d.\n", r.GetAgents(), r.GetFiles())
		}),
	}
}

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
	name := printable(agentName(g))
	a.say("Agent %s is ORPHANED: %s To decide: agbox agent resolve {--revive | --reap} %[1]s", name, g.GetMessage())
	return true
}

func (a *app) agentWaitCommand() *cobra.Command {
	var tree bool
	cmd := &cobra.Command{
		Use:   "wait AGENT... [flags]",
		Short: "Wait until agents have ended, and print their states",
		Long: `Wait until agents have ended, and print the state of each. The exit code is 0 if all
of them are COMPLETED, else 1.

With --tree it also waits for all agents below them, also for those that are spawned
meanwhile, and prints name and state of each when it has ended.

If one of them is ORPHANED meanwhile, a note on stderr says how to decide about it.`,
		Example: `  agbox agent wait fixer
  agbox agent wait --tree planner`,
		Args: arguments(1, -1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachAgent(ctx, c, args, reads, func(id string) error {
				return a.whileWaiting(ctx, c, id, tree, func() error {
					if tree {
						return a.waitTree(ctx, c, id)
					}
					g, err := c.WaitAgent(ctx, id)
					if err != nil {
						return err
					}
					fmt.Fprintln(a.stdout, g.GetWord())
					return agentOutcome(g)
				})
			})
		}),
	}
	cmd.Flags().BoolVar(&tree, "tree", false, "also wait for all agents below")
	return cmd
}

// waitTree waits for an agent and all below it. The error is about the first that is not
// COMPLETED.
func (a *app) waitTree(ctx context.Context, c *client.Client, ref string) error {
	var failed error
	err := c.WaitAgentTree(ctx, ref, func(g *agboxv1.Agent) error {
		failed = cmp.Or(failed, agentOutcome(g))
		return a.printf("%s\t%s\n", printable(agentName(g)), g.GetWord())
	})
	return cmp.Or(err, failed)
}

// agentOutcome returns an error if an agent that has ended did not complete.
func agentOutcome(g *agboxv1.Agent) error {
	if g.GetState() == agboxv1.AgentState_AGENT_STATE_COMPLETED {
		return nil
	}
	return fmt.Errorf("agent %s is %s: %s", printable(agentName(g)), g.GetWord(), printable(g.GetMessage()))
}
