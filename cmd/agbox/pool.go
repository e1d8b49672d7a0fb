package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) poolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Keep sandboxes ready that are handed out at once",
		Long: `Keep sandboxes ready, with their services, that "agbox create" and the like hand out at once. A
request gets one if its description differs from that of the pool at most in name, labels,
environment, main command, user, copied files and workspace, and post_create. In name only if the
daemon is that of root, and the file system of the sandbox not read-only. Otherwise a new sandbox
is made. Sandboxes with mounts of this machine are not made ahead.

Commands of "prepare" (--prepare) run before a sandbox is offered, for example to install packages,
to clone a repository or to fill a database. They see the environment, so that must be equal too.

The line "auto-pool: 1" in agboxd.yaml ("agboxd config") keeps one ready of what was created last,
in the pool auto. The setting "pool" there has pools that only change there: a name, and below it
the size and the fields of a sandbox file, with absolute paths.`,
	}
	onlyCommands(cmd, a.poolLsCommand(), a.poolSetCommand(), a.poolRmCommand())
	return cmd
}

func (a *app) poolSetCommand() *cobra.Command {
	var o specOptions
	size := 1
	cmd := &cobra.Command{
		Use:   "set NAME [flags]",
		Short: "Make a pool, or replace it by another one",
		Long: `Make a pool, or replace it. A file and flags describe its sandboxes, as for "agbox create"; with
the same description only the size changes. The daemon makes them in the background, and another
one for each that is handed out. It removes those whose image has changed since, and all while this
machine is short of memory. After an hour without a request that fits, it keeps one.`,
		Example:           `  agbox pool set stack --size 2 -f agbox.yaml`,
		Args:              arguments(1, 1, "a NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		input, err := o.sandboxRequest(ctx, a, c, "", nil)
		if err != nil {
			return err
		}
		if err := o.agreed(ctx, a, c, input); err != nil {
			return err
		}
		pool, err := c.SetPool(ctx, args[0], size, input.Request)
		if err != nil {
			return err
		}
		return a.println(pool.GetName())
	})
	o.addFlags(cmd)
	cmd.Flags().IntVar(&size, "size", size, "keep `N` sandboxes ready, 1 to 64")
	return cmd
}

func (a *app) poolLsCommand() *cobra.Command {
	var o listing[*agboxv1.Pool]
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the pools, what they have ready, and how often they helped",
		Args:  arguments(0, 0, ""),
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			pools, err := c.ListPools(ctx)
			if err != nil {
				return err
			}
			if pools, err = o.filtered(pools); err != nil {
				return err
			}
			return o.print(a, pools, poolColumns, a.poolRows)
		}),
	}
	o.addFlags(cmd)
	return cmd
}

// poolColumns are the columns of poolRows.
var poolColumns = []view.Column{{Title: "NAME", Min: 12}, {Title: "READY"}, {Title: "IMAGE", Omit: 2}, {Title: "HITS", Right: true}, {Title: "MISSES", Right: true}, {Title: "OLDEST", Omit: 1}, {Title: "STATUS"}}

func (a *app) poolRows(pools []*agboxv1.Pool) [][]view.Cell {
	var rows [][]view.Cell
	for _, p := range pools {
		status := "ok"
		switch {
		case p.GetTrouble() != "":
			status = strings.ReplaceAll(p.GetTrouble(), "\n", " ")
		case p.GetComing() > 0:
			status = fmt.Sprintf("%d being made", p.GetComing())
		case p.GetReady() < p.GetSize():
			status = "idle, keeps fewer"
		}
		rows = append(rows, cells(
			p.GetName(), fmt.Sprintf("%d/%d", p.GetReady(), p.GetSize()), p.GetSpec().GetImage(), fmt.Sprint(p.GetHits()), fmt.Sprint(p.GetMisses()),
			a.sinceCell(p.GetOldestAt()), status,
		))
	}
	return rows
}

func (a *app) poolRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm NAME...",
		Short:             "Remove pools, with what they have ready",
		Args:              arguments(1, -1, "a NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, args, func(name string) error {
				err := c.RemovePool(ctx, name)
				if err == nil {
					_, err = fmt.Fprintln(a.stdout, printable(name))
				}
				return err
			})
		}),
	}
}
