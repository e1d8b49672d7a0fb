package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

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
			fmt.Fprintf(a.stderr, "Agent %s is held. Ctrl-C ends that.\n", printable(cmp.Or(g.GetName(), g.GetAgentId())))
		}
	}
	return nil
}

// closeBound is how long an interrupted command tries to close its hold, which otherwise
// lingers.
const closeBound = 5 * time.Second
