package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type lsOptions struct {
	all    bool
	quiet  bool
	labels []string
	format format
}

func (a *app) lsCommand() *cobra.Command {
	var o lsOptions
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Short:             "List sandboxes",
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			return o.run(ctx, a, c)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "list deleted sandboxes too")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	f.StringArrayVar(&o.labels, "label", nil, "only sandboxes with `KEY=VALUE` (repeatable)")
	addFormat(cmd, &o.format)
	return cmd
}

func (o *lsOptions) run(ctx context.Context, a *app, c *client.Client) error {
	labels, err := assignments("label", o.labels)
	if err != nil {
		return err
	}
	list, err := c.ListSandboxes(ctx, client.ListOptions{IncludeDeleted: o.all, Labels: labels})
	switch {
	case err != nil:
		return err
	case o.quiet:
		for _, h := range list {
			fmt.Fprintln(a.stdout, h.GetSandboxId())
		}
		return nil
	case o.format == formatJSON:
		return printJSONList(a.stdout, list)
	}
	rows := make([][]string, len(list))
	for i, h := range list {
		rows[i] = a.sandboxRow(h)
	}
	return printTable(a.stdout, []string{"NAME", "ID", "STATE", "IMAGE", "EXECS", "CREATED"}, rows)
}

func (a *app) sandboxRow(h *agboxv1.SandboxHandle) []string {
	return []string{
		orDash(h.GetName()),
		h.GetSandboxId(),
		sandboxState(h),
		cut(orDash(h.GetImage()), 48),
		fmt.Sprint(h.GetActiveExecs()),
		a.since(h.GetCreatedAt()),
	}
}
