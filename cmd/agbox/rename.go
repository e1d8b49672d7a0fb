package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

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
