package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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
		return a.println(id)
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

// untilEnded is a wait until nothing runs any more in what is being removed.
func untilEnded(c *client.Client) func(context.Context, string) error {
	return func(ctx context.Context, id string) error { return c.WaitEnded(ctx, id) }
}

// removalTime is how long untilRemoved waits at most: an engine that hangs says so itself.
const removalTime = 10 * time.Second

// untilRemoved waits for sandboxes that are being removed: they use images, and without a daemon nobody
// removes them. left are those that still are after removalTime.
func untilRemoved(ctx context.Context, c *client.Client) (left []string, err error) {
	all, err := c.ListSandboxes(ctx, client.ListOptions{IncludeEnded: true})
	if err != nil {
		return nil, err
	}
	brief, cancel := context.WithTimeout(ctx, removalTime)
	defer cancel()
	for _, h := range all {
		if h.GetState() != agboxv1.SandboxState_SANDBOX_STATE_DELETING {
			continue
		}
		failed := c.WaitDeleted(brief, h.GetSandboxId())
		switch {
		case errors.Is(failed, context.DeadlineExceeded): // the daemon may say so before brief does
			left = append(left, h.GetSandboxId())
		case failed != nil:
			err = cmp.Or(err, failed)
		}
	}
	return left, cmp.Or(err, ctx.Err())
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
			return a.println(id)
		}),
	}
}

type rmOptions struct {
	force  bool
	now    bool
	noWait bool
	wait   bool
	all    bool
	labels []string
	// keepLogs leaves the output of commands to the daemon's retention.
	keepLogs bool
}

func (a *app) rmCommand() *cobra.Command {
	var o rmOptions
	cmd := &cobra.Command{
		Use:   "rm [SANDBOX... | --label KEY=VALUE | --all] [flags]",
		Short: "Remove sandboxes and everything that runs in them",
		Long: `Remove sandboxes, everything that runs in them and the output of their commands. If a
sandbox has changed its workspace and that was not brought back by "agbox apply" or
"agbox pull", if its HEAD, another branch, a tag or its stash has commits that were not brought
and that the folder's repository does not have, also in a repository below the top of the
workspace, if git has worked in a work tree in an ignored folder there, or if commands
run in it, agbox rm asks on a terminal and refuses elsewhere, unless -f is given. The main
command does not count, nor do new files that are ignored. It does the same if a sandbox may
have left, in a folder that it mounts writable, what git takes for a repository: git executes its
settings.

Without SANDBOX it removes the sandbox of this folder, and always asks. Without a terminal
it removes only what is named.

It returns once nothing of the sandbox runs any more, and its name and ports are free. The daemon
removes the files after that: "agbox ls -a" shows it until then, and --wait waits for it.`,
		Args: func(_ *cobra.Command, args []string) error {
			if o.all && len(args)+len(o.labels) > 0 {
				return usagef("--all removes every sandbox: omit the names and --label.")
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(-1),
		RunE:              a.runs(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.force, "force", "f", false, "do not ask about what is named, also remove sandboxes with agents that have not ended, and do not fail for sandboxes that do not exist")
	f.BoolVar(&o.all, "all", false, "remove all sandboxes")
	f.StringArrayVar(&o.labels, "label", nil, "remove all sandboxes with `KEY=VALUE` (repeatable; all must match)")
	f.BoolVar(&o.now, "now", false, "with -f, do not wait for agents to save their work")
	f.BoolVar(&o.keepLogs, "keep-logs", false, "keep the output of commands readable, for a day unless the daemon is set otherwise")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the request is accepted")
	f.BoolVar(&o.wait, "wait", false, "return when nothing is left of it, not only once nothing of it runs")
	cmd.MarkFlagsMutuallyExclusive("no-wait", "wait")
	return cmd
}

func (o *rmOptions) run(ctx context.Context, a *app, c *client.Client, refs []string) error {
	labels, err := assignments("label", o.labels)
	if err != nil {
		return err
	}
	if len(labels) > 0 || o.all {
		list, err := c.ListSandboxes(ctx, client.ListOptions{Labels: labels, IncludeEnded: o.wait})
		if err != nil {
			return err
		}
		refs = slices.Concat(refs, collect(list, (*agboxv1.SandboxHandle).GetSandboxId))
	}
	meant := o.all || len(refs)+len(labels) > 0
	if !meant {
		if refs, err = a.named(ctx, c, "rm", nil); err != nil {
			return err
		}
	}
	ch := change{ask: func(ctx context.Context, id string) error { return a.remove(ctx, c, id, meant, o.keepLogs) }}
	switch {
	case o.wait:
		ch.wait = func(ctx context.Context, id string) error { return c.WaitDeleted(ctx, id) }
	case !o.noWait:
		ch.wait = untilEnded(c)
	}
	if o.force {
		if !meant { // a variable in a script may be empty
			if err := a.confirmRemoval(ctx, refs[0], "Remove sandbox "+refs[0]+"?"); err != nil {
				return err
			}
		}
		if !o.now {
			ch.said = func(ctx context.Context, id string) { a.sayDraining(ctx, c, id) }
		}
		ch.ignore = func(err error) bool {
			if b := new(beginning); errors.As(err, b) { // what was named does not exist
				a.say("%s Nothing was removed for %s.", err, printable(b.text))
				return true
			}
			return errors.Is(err, client.ErrNotFound)
		}
		ch.ask = func(ctx context.Context, id string) error {
			a.tellUncovered(ctx, c, id)
			return c.DeleteSandboxWith(ctx, id, client.DeleteOptions{Now: o.now, RemoveLogs: !o.keepLogs})
		}
	}
	return ch.apply(ctx, a, c, refs)
}

func (a *app) pruneCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove the sandboxes that are stopped or have failed",
		Long: `Remove the sandboxes that are stopped or have failed, with their files. Without -f it
says which changes to copied workspaces were never brought back. On a terminal it lists
the sandboxes, and asks; elsewhere it needs -f. Sandboxes with agents that have not ended
stay: "agbox rm -f" removes them.`,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			return a.prune(ctx, c, force)
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

func (a *app) prune(ctx context.Context, c *client.Client, force bool) error {
	list, err := c.ListSandboxes(ctx, client.ListOptions{})
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(h *agboxv1.SandboxHandle) bool { return !slices.Contains(resting, h.GetState()) })
	ids := collect(list, (*agboxv1.SandboxHandle).GetSandboxId)
	switch {
	case len(ids) == 0:
		a.say("No sandbox is stopped or has failed.")
		return nil
	case !force && a.terminal() == nil:
		if err := a.tellOfLosses(ctx, c, list); err != nil {
			return err
		}
		return usagef("Sandboxes to remove: %d. Without a terminal agbox prune needs -f.", len(ids))
	case !force:
		fmt.Fprint(a.stderr, view.Render(sandboxColumns(list), a.sandboxRows(list), view.Options{Width: a.width()}))
		if err := a.tellOfLosses(ctx, c, list); err != nil {
			return err
		}
		yes, err := a.confirm(ctx, "Remove all of these, with their files?")
		if err != nil || !yes {
			return err
		}
	}
	ch := change{
		// Somebody may have started it while the question was open.
		ask: func(ctx context.Context, id string) error {
			out, err := c.GetSandbox(ctx, id)
			if err != nil {
				return err
			}
			if !slices.Contains(resting, out.GetSandbox().GetState()) {
				return &client.Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf("Sandbox %s is no longer stopped, so it stays.", id)}
			}
			return c.DeleteSandboxWith(ctx, id, client.DeleteOptions{SpareAgents: true})
		},
		wait:   untilEnded(c),
		ignore: func(err error) bool { return errors.Is(err, client.ErrNotFound) },
	}
	return ch.apply(ctx, a, c, ids)
}
