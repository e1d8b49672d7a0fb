package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type rmOptions struct {
	force  bool
	now    bool
	noWait bool
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

Without SANDBOX it asks whether to remove the sandbox of this folder. Without a terminal
it removes only what is named.`,
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
	f.BoolVarP(&o.force, "force", "f", false, "do not ask, also remove sandboxes with agents that have not ended, and do not fail for sandboxes that do not exist")
	f.BoolVar(&o.all, "all", false, "remove all sandboxes")
	f.StringArrayVar(&o.labels, "label", nil, "remove all sandboxes with `KEY=VALUE` (repeatable; all must match)")
	f.BoolVar(&o.now, "now", false, "with -f, do not wait for agents to save their work")
	f.BoolVar(&o.keepLogs, "keep-logs", false, "keep the output of commands readable, for a day unless the daemon is set otherwise")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the request is accepted")
	return cmd
}

func (o *rmOptions) run(ctx context.Context, a *app, c *client.Client, refs []string) error {
	labels, err := assignments("label", o.labels)
	if err != nil {
		return err
	}
	if len(labels) > 0 {
		list, err := c.ListSandboxes(ctx, client.ListOptions{Labels: labels})
		if err != nil {
			return err
		}
		refs = slices.Concat(refs, collect(list, (*agboxv1.SandboxHandle).GetSandboxId))
	}
	if o.all {
		if refs, err = sandboxesIn(ctx, c); err != nil {
			return err
		}
	}
	if !o.all && len(refs)+len(labels) == 0 {
		if refs, err = o.here(ctx, a, c); err != nil {
			return err
		}
	}
	ch := change{ask: func(ctx context.Context, id string) error { return a.remove(ctx, c, id, o.keepLogs) }}
	if !o.noWait {
		ch.wait = untilDeleted(c)
	}
	if o.force {
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

// here asks whether to remove the sandbox of this folder, and refuses without a terminal.
func (o *rmOptions) here(ctx context.Context, a *app, c *client.Client) ([]string, error) {
	names, err := a.named(ctx, c, "rm", nil)
	if err != nil {
		return nil, err
	}
	return names, a.confirmRemoval(ctx, names[0], "Remove sandbox "+names[0]+"?")
}

func (a *app) pruneCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove the sandboxes that are stopped or have failed",
		Long: `Remove the sandboxes that are stopped or have failed, with their files. On a terminal
it lists them, says which changes to copied workspaces were never brought back, and asks;
elsewhere it needs -f. Sandboxes with agents that have not ended stay: "agbox rm -f"
removes them.`,
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
		wait:   untilDeleted(c),
		ignore: func(err error) bool { return errors.Is(err, client.ErrNotFound) },
	}
	return ch.apply(ctx, a, c, ids)
}
