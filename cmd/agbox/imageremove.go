package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) imageRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images that no container uses",
		Long: `Remove names of images, and an image with its last name. An image that a container uses,
also a stopped one, stays, and so does each while a sandbox is being made.`,
		Args:              arguments(1, -1, "an IMAGE"),
		ValidArgsFunction: a.completeImages(-1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, args, func(ref string) error {
				err := c.RemoveImage(ctx, ref, false)
				if err == nil {
					_, err = fmt.Fprintln(a.stdout, printable(ref))
				}
				return err
			})
		}),
	}
}

func (a *app) imagePruneCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove the images that agbox has built and that nothing uses",
		Long: `Remove the images that agbox has built, for sandbox files with a build and for presets,
and that no container and no other image uses, also those of other daemons that use this
engine. On a terminal it lists them and asks;
elsewhere it needs -f. A sandbox that needs one later has it built again.`,
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.with(func(ctx context.Context, c *client.Client, _ []string) error { return a.pruneImages(ctx, c, force) }),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

func (a *app) pruneImages(ctx context.Context, c *client.Client, force bool) error {
	list, err := c.ListImages(ctx)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(i *agboxv1.Image) bool { return !i.GetBuilt() || i.GetUsed() })
	switch {
	case len(list) == 0:
		a.say("No image that agbox has built is unused.")
		return nil
	case !force && a.terminal() == nil:
		return usagef("Images to remove: %d. Without a terminal agbox image prune needs -f.", len(list))
	case !force:
		fmt.Fprint(a.stderr, view.Render(imageColumns, a.imageRows(list, false, false), view.Options{Width: a.width()}))
		yes, err := a.confirm(ctx, "Remove all of these?")
		if err != nil || !yes {
			return err
		}
	}
	var names []string
	for _, i := range list {
		names = append(names, i.GetNames()...)
	}
	return a.each(ctx, names, func(name string) error {
		err := c.RemoveImage(ctx, name, true) // it may be used meanwhile
		if errors.Is(err, client.ErrNotFound) {
			return nil
		}
		if err == nil {
			_, err = fmt.Fprintln(a.stdout, printable(name))
		}
		return err
	})
}
