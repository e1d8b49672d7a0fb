package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) agentPauseCommand() *cobra.Command {
	var message string
	cmd := &cobra.Command{
		Use:   "pause AGENT... [flags]",
		Short: "Let agents wait for an approval",
		Long: `Pause agents until you approve or deny: they are WAITING_FOR_APPROVAL. Their programs go
on running; after 30 minutes in the pause they are drained ("idle_timeout:" in the block
"agent:" of agbox.yaml). "agbox agent drain" ends the programs at once.`,
		Args: arguments(1, -1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.changeAgents(ctx, c, args, func(id string) (*agboxv1.Agent, error) { return c.PauseAgent(ctx, id, message) })
		}),
	}
	cmd.Flags().StringVarP(&message, "message", "m", "", "why, for whoever decides")
	return cmd
}

func (a *app) agentApproveCommand() *cobra.Command {
	return a.agentDecideCommand("approve", "Let agents go on that wait for an approval",
		`Let agents go on that are WAITING_FOR_APPROVAL. They are PAUSED until their programs go
on. If the program of an agent has ended meanwhile, the next incarnation begins, and the
sandbox is started if it is stopped.`, agboxv1.AgentVerdict_AGENT_VERDICT_APPROVE)
}

func (a *app) agentDenyCommand() *cobra.Command {
	return a.agentDecideCommand("deny", "Refuse what agents wait for an approval of",
		`Refuse what agents are WAITING_FOR_APPROVAL of. They are not ended: they go on by
planning anew. "agbox agent kill" ends an agent.`, agboxv1.AgentVerdict_AGENT_VERDICT_DENY)
}

func (a *app) agentDecideCommand(name, short, long string, verdict agboxv1.AgentVerdict) *cobra.Command {
	var message string
	cmd := &cobra.Command{
		Use: name + " AGENT... [flags]", Short: short, Long: long,
		Args: arguments(1, -1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.changeAgents(ctx, c, args, func(id string) (*agboxv1.Agent, error) { return c.DecideAgent(ctx, id, verdict, message) })
		}),
	}
	cmd.Flags().StringVarP(&message, "message", "m", "", "why, for the agent")
	return cmd
}

// changeAgents does something to agents, and says of which agents that has changed nothing, for
// example because it was done before.
func (a *app) changeAgents(ctx context.Context, c *client.Client, refs []string, do func(id string) (*agboxv1.Agent, error)) error {
	return a.each(ctx, refs, func(ref string) error {
		id, err := a.agent(ctx, c, ref, changes)
		if err != nil {
			return err
		}
		before, err := c.GetAgent(ctx, id)
		if err != nil {
			return err
		}
		g, err := do(id)
		if err == nil && g.GetLastSequence() == before.GetLastSequence() {
			a.say("%s", strings.TrimSpace(fmt.Sprintf("Nothing was changed: agent %s is %s. %s", ref, g.GetWord(), g.GetMessage())))
		}
		return err
	})
}

func (a *app) agentHoldCommand() *cobra.Command {
	h := client.AgentHold{Name: client.NewID()}
	cmd := &cobra.Command{
		Use:   "hold AGENT [flags]",
		Short: "Hold an agent, which goes on only while somebody does",
		Long: `Hold an agent until it has ended. An agent with "lifetime: held" that nobody holds
saves its work and is SUSPENDED; when it is held again, it goes on from its checkpoint.

Ctrl-C ends the hold at once. If the connection is lost, the hold stays for the time of
--linger. A restart or an upgrade of the daemon does not end it.`,
		Args: arguments(1, 1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if h.Linger < 0 {
				return usagef("--linger takes a time that is not negative.")
			}
			var err error
			if h.Agent, err = a.agent(ctx, c, args[0], changes); err != nil {
				return err
			}
			return a.holdAgent(ctx, c, h)
		}),
	}
	cmd.Flags().DurationVar(&h.Linger, "linger", 0, "`TIME` that the hold stays after the connection was lost (default 30s)")
	return cmd
}

// holdAgent holds an agent until it has ended. If the command is interrupted, it closes the
// hold.
func (a *app) holdAgent(ctx context.Context, c *client.Client, h client.AgentHold) error {
	said := false
	for g, err := range c.HoldAgent(ctx, h) {
		switch {
		case err != nil && ctx.Err() != nil:
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeBound)
			defer cancel()
			if _, failed := c.CloseHold(closing, h.Agent, h.Name); failed != nil {
				return failed
			}
			return err
		case err != nil:
			return err
		case g.GetEndedAt() != nil:
			return agentOutcome(g)
		case !said:
			said = true
			fmt.Fprintf(a.stderr, "Agent %s is held. Ctrl-C ends that.\n", printable(agentName(g)))
		}
	}
	return nil
}

// closeBound is how long an interrupted command tries to close its hold, which otherwise
// lingers.
const closeBound = 5 * time.Second

func (a *app) agentDrainCommand() *cobra.Command {
	var req agboxv1.DrainAgentsRequest
	var noWait bool
	cmd := &cobra.Command{
		Use:   "drain {AGENT... | --sandbox SANDBOX | --all} [flags]",
		Short: "Let agents save their work and pause",
		Long: `Let agents save their work, end their programs and pause them.

A program learns of it at once with every answer of "agbox-agent", and by
"agbox-agent drained"; after 5 seconds it gets SIGTERM, and after 65 seconds SIGKILL.
"drain:" in the block "agent:" of agbox.yaml changes the times. The agents are PAUSED
until "agbox agent resume".`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && req.GetSandboxId() == "" && !req.GetAll() {
				return usagef("%s needs an AGENT, --sandbox or --all.", cmd.CommandPath())
			}
			return nil
		},
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			req.AgentIds = args
			return a.drainAgents(ctx, c, &req, noWait)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&req.SandboxId, "sandbox", "", "drain all agents in `SANDBOX`")
	f.BoolVar(&req.All, "all", false, "drain all agents")
	f.BoolVar(&noWait, "no-wait", false, "return as soon as the request is accepted")
	return cmd
}

// drainAgents drains the agents, waits for them and prints the ids of those that wait then.
func (a *app) drainAgents(ctx context.Context, c *client.Client, req *agboxv1.DrainAgentsRequest, noWait bool) error {
	var err error
	if req.AgentIds, err = a.resolved(ctx, c, ofAgent, req.GetAgentIds(), changes); err != nil {
		return err
	}
	if req.SandboxId != "" {
		if req.SandboxId, err = a.sandbox(ctx, c, req.GetSandboxId(), changes); err != nil {
			return err
		}
	}
	list, err := c.DrainAgents(ctx, req)
	if err != nil {
		return err
	}
	return a.each(ctx, collect(list, (*agboxv1.Agent).GetAgentId), func(id string) error {
		if !noWait {
			if _, err := c.WaitAgentHalted(ctx, id); err != nil {
				return err
			}
		}
		return a.println(id)
	})
}

func (a *app) agentResumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resume AGENT...",
		Short: "Let drained agents go on",
		Long: `Let agents go on that were drained: the next incarnation begins, and the sandbox is
started if it is stopped. An agent that still saves its work goes on when it has.`,
		Args: arguments(1, -1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.changeAgents(ctx, c, args, func(id string) (*agboxv1.Agent, error) { return c.WakeAgent(ctx, id) })
		}),
	}
}

// sayDraining says for which agents in a sandbox its end waits. A daemon that cannot list
// agents has none that it waits for.
func (a *app) sayDraining(ctx context.Context, c *client.Client, sandboxID string) {
	list, err := c.ListAgents(ctx, &agboxv1.ListAgentsRequest{SandboxId: sandboxID})
	if err != nil {
		return
	}
	var names []string
	for _, g := range list {
		if g.GetRunning() {
			names = append(names, agentName(g))
		}
	}
	if len(names) == 0 {
		return
	}
	name := sandboxID
	if out, err := c.GetSandbox(ctx, sandboxID); err == nil {
		name = cmp.Or(out.GetSandbox().GetName(), sandboxID)
	}
	a.say("Waiting for agents to save their work: %s. With --now, sandbox %s ends them at once.", strings.Join(names, ", "), name)
}
