package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
	ids := make([]string, len(list))
	for i, g := range list {
		ids[i] = g.GetAgentId()
	}
	return a.each(ctx, ids, func(id string) error {
		if !noWait {
			if _, err := c.WaitAgentHalted(ctx, id); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintln(a.stdout, id)
		return err
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
			names = append(names, cmp.Or(g.GetName(), g.GetAgentId()))
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
