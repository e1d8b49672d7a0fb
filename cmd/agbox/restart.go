package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

func (a *app) restartCommand() *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use:   "restart SANDBOX... [flags]",
		Short: "Stop sandboxes and start them again",
		Long: `Stop sandboxes, as "agbox stop" does, and start them again. A stopped one is only
started. If agbox is interrupted in between, the sandbox stays stopped: "agbox start"
starts it.`,
		Args:              arguments(1, -1, "a SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(-1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			ch := change{
				ask:  c.StopSandbox,
				said: func(ctx context.Context, id string) { a.sayDraining(ctx, c, id) },
				wait: func(ctx context.Context, id string) error { return a.startAgain(ctx, c, id) },
			}
			if now {
				ch.ask, ch.said = c.StopSandboxNow, nil
			}
			return ch.apply(ctx, a, c, args)
		}),
	}
	cmd.Flags().BoolVar(&now, "now", false, "do not wait for agents to save their work")
	return cmd
}

// startAgain starts a sandbox once it has stopped, and waits until it is ready.
func (a *app) startAgain(ctx context.Context, c *client.Client, id string) error {
	_, err := c.WaitStopped(ctx, id)
	if err == nil {
		err = c.ResumeSandbox(ctx, id)
	}
	if err == nil {
		_, err = c.WaitReady(ctx, id)
	}
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		a.say("Sandbox %s may be stopped. `agbox start %[1]s` starts it.", id)
	}
	return err
}
