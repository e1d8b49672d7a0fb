package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

func (a *app) startCommand() *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:               "start [SANDBOX...] [flags]",
		Short:             "Start stopped sandboxes, or that of this folder, again",
		Args:              arguments(0, -1, ""),
		ValidArgsFunction: a.completeSandboxes(-1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			ch := change{ask: c.ResumeSandbox}
			if !noWait {
				ch.wait = func(ctx context.Context, id string) error {
					_, err := c.WaitReady(ctx, id)
					return err
				}
			}
			args, err := a.orHere(ctx, c, args, changes)
			if err != nil {
				return err
			}
			return ch.apply(ctx, a, c, args)
		}),
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return as soon as the request is accepted")
	return cmd
}
