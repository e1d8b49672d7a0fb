package main

import (
	"context"
	"fmt"
	"strings"

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
