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

var (
	// running are the states of a sandbox that can be stopped.
	running = []agboxv1.SandboxState{agboxv1.SandboxState_SANDBOX_STATE_PENDING, agboxv1.SandboxState_SANDBOX_STATE_READY}
	// resting are the states of a sandbox in which nothing runs.
	resting = []agboxv1.SandboxState{agboxv1.SandboxState_SANDBOX_STATE_STOPPED, agboxv1.SandboxState_SANDBOX_STATE_FAILED}
)

// sandboxesOrAll takes sandboxes, or none with --all.
func sandboxesOrAll(all *bool) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if *all && len(args) > 0 {
			return usagef("--all means every sandbox: omit %q.", args[0])
		}
		return nil
	}
}

// sandboxesIn returns the ids of the sandboxes in one of the states, or of all.
func sandboxesIn(ctx context.Context, c *client.Client, states ...agboxv1.SandboxState) ([]string, error) {
	list, err := c.ListSandboxes(ctx, client.ListOptions{})
	var ids []string
	for _, h := range list {
		if len(states) == 0 || slices.Contains(states, h.GetState()) {
			ids = append(ids, h.GetSandboxId())
		}
	}
	return ids, err
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
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
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
	ids := make([]string, len(list))
	for i, h := range list {
		ids[i] = h.GetSandboxId()
	}
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
		wait:   func(ctx context.Context, id string) error { return c.WaitDeleted(ctx, id) },
		ignore: func(err error) bool { return errors.Is(err, client.ErrNotFound) },
	}
	return ch.apply(ctx, a, c, ids)
}
