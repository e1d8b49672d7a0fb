package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

func (a *app) stopCommand() *cobra.Command {
	var noWait, now, all bool
	cmd := &cobra.Command{
		Use:   "stop [SANDBOX... | --all] [flags]",
		Short: "Stop sandboxes and keep them; their commands end",
		Long: `Stop sandboxes, or that of this folder, and keep them. Their commands end: SIGTERM, then
SIGKILL after 8 seconds.
Agents in them first get the time to save their work, at most 65 seconds; they go on when
the sandbox is started again.`,
		Args:              sandboxesOrAll(&all),
		ValidArgsFunction: a.completeSandboxes(-1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			ch := change{ask: c.StopSandbox, said: func(ctx context.Context, id string) { a.sayDraining(ctx, c, id) }}
			if now {
				ch.ask, ch.said = c.StopSandboxNow, nil
			}
			if !noWait {
				ch.wait = func(ctx context.Context, id string) error {
					_, err := c.WaitStopped(ctx, id)
					if err == nil {
						a.tellUncovered(ctx, c, id)
					}
					return err
				}
			}
			if all {
				ids, err := sandboxesIn(ctx, c, running...)
				if err != nil {
					return err
				}
				args = ids
			} else {
				var err error
				if args, err = a.named(ctx, c, "stop", args); err != nil {
					return err
				}
			}
			return ch.apply(ctx, a, c, args)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "stop all sandboxes that run")
	cmd.Flags().BoolVar(&now, "now", false, "do not wait for agents to save their work")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return as soon as the request is accepted")
	return cmd
}
