package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

func (a *app) agentReapCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reap",
		Short: "Look at all agents now: record what has ended, remove what is left",
		Long: `Look at all agents now, as the daemon does by itself every 10 seconds: programs that
have ended are recorded, their agents go on or end, and files of ended agents are
removed. It prints the orphaned agents that wait for "agbox agent resolve".`,
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			r, err := c.ReapAgents(ctx)
			if err != nil {
				return err
			}
			for _, g := range r.GetWaiting() {
				fmt.Fprintf(a.stdout, "%s is ORPHANED and waits for a decision: agbox agent resolve {--revive | --reap} %[1]s\n", g.GetAgentId())
			}
			_, err = fmt.Fprintf(a.stdout, "Agents looked at: %d. Files of ended agents removed: %d.\n", r.GetAgents(), r.GetFiles())
			return err
		}),
	}
}
