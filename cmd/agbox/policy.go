package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy COMMAND",
		Short: "Show what the operator of this machine allows at most",
	}
	onlyCommands(cmd)
	show := &cobra.Command{
		Use:   "show",
		Short: "Show the policy that the daemon applies, and where each setting comes from",
		Long: `Show the policy that the daemon applies, and where each setting comes from.

The operator writes it into /etc/agbox/policy.yaml, which only root may change. It
applies to all users, whatever their flags and files say. The daemon reads it when
it starts.`,
		Args: arguments(0, 0, "nothing"),
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			about, err := c.Ping(ctx)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.stdout, about.GetPolicy())
			return err
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	show.DisableFlagsInUseLine = true
	cmd.AddCommand(show)
	return cmd
}
