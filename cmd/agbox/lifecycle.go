package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

// change moves sandboxes from one state to another.
type change struct {
	// ask requests the change from the daemon.
	ask func(ctx context.Context, id string) error
	// said is called before wait; it may be nil.
	said func(ctx context.Context, id string)
	// wait returns when the change is complete; nil does not wait.
	wait func(ctx context.Context, id string) error
	// ignore tells which errors of the look-up and of ask to ignore; nil ignores none.
	ignore func(error) bool
}

// apply requests all changes first and then waits for each, so many sandboxes take
// about as long as one. It prints the ids of the sandboxes that are done.
func (ch change) apply(ctx context.Context, a *app, c *client.Client, refs []string) error {
	var ids []string
	failed := a.each(ctx, refs, func(ref string) error {
		id, err := a.sandbox(ctx, c, ref, changes)
		if err == nil {
			err = ch.ask(ctx, id)
		}
		if err != nil {
			if ch.ignore != nil && ch.ignore(err) {
				return nil
			}
			return err
		}
		ids = append(ids, id)
		return nil
	})
	if ctx.Err() != nil {
		return failed
	}
	late := a.each(ctx, ids, func(id string) error {
		if ch.wait != nil {
			if ch.said != nil {
				ch.said(ctx, id)
			}
			if err := ch.wait(ctx, id); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintln(a.stdout, id)
		return err
	})
	if failed != nil && ctx.Err() == nil {
		return failed
	}
	return late
}

// untilReady is a wait for the end of a start.
func untilReady(c *client.Client) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		_, err := c.WaitReady(ctx, id)
		return err
	}
}

// untilDeleted is a wait for the end of a removal.
func untilDeleted(c *client.Client) func(context.Context, string) error {
	return func(ctx context.Context, id string) error { return c.WaitDeleted(ctx, id) }
}

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
				ch.wait = untilReady(c)
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
			var err error
			if all {
				args, err = sandboxesIn(ctx, c, running...)
			} else {
				args, err = a.named(ctx, c, "stop", args)
			}
			if err != nil {
				return err
			}
			return ch.apply(ctx, a, c, args)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "stop all sandboxes that run")
	cmd.Flags().BoolVar(&now, "now", false, "do not wait for agents to save their work")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return as soon as the request is accepted")
	return cmd
}

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
				ch.wait = untilReady(c)
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

func (a *app) renameCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rename SANDBOX NAME",
		Short: "Give a sandbox another name",
		Long: `Give a sandbox another name, in any state. Its commands go on, and host names in its
containers stay as they are.`,
		Args:              arguments(2, 2, "a SANDBOX and its new NAME"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := a.sandbox(ctx, c, args[0], changes)
			if err != nil {
				return err
			}
			if err := c.RenameSandbox(ctx, id, args[1]); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, id)
			return err
		}),
	}
}
