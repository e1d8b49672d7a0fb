package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

func (a *app) restartCommand() *cobra.Command {
	var now, noWait bool
	cmd := &cobra.Command{
		Use:   "restart [SANDBOX...] [flags]",
		Short: "Stop sandboxes and start them again",
		Long: `Stop sandboxes, or that of this folder, as "agbox stop" does, and start them again. A
stopped one is only started. The daemon does both, also if agbox is interrupted in
between; "agbox stop" cancels the start.`,
		Args:              arguments(0, -1, ""),
		ValidArgsFunction: a.completeSandboxes(-1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			ch := change{
				ask: func(ctx context.Context, id string) error { return c.RestartSandbox(ctx, id, now) },
			}
			if !now {
				ch.said = func(ctx context.Context, id string) { a.sayDraining(ctx, c, id) }
			}
			if !noWait {
				ch.wait = func(ctx context.Context, id string) error {
					_, err := c.WaitReady(ctx, id)
					return err
				}
			}
			args, err := a.named(ctx, c, "restart", args)
			if err != nil {
				return err
			}
			return ch.apply(ctx, a, c, args)
		}),
	}
	cmd.Flags().BoolVar(&now, "now", false, "do not wait for agents to save their work")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return as soon as the request is accepted")
	return cmd
}
