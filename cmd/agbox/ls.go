package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

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
		Short:             "List sandboxes, newest first",
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
	head := sandboxHead
	served := slices.ContainsFunc(list, func(h *agboxv1.SandboxHandle) bool { return len(h.GetServiceStatus()) > 0 })
	rows := make([][]string, len(list))
	for i, h := range list {
		rows[i] = a.sandboxRow(h)
		if served {
			rows[i] = append(rows[i], servicesWord(h))
		}
	}
	if served {
		head = append(slices.Clone(head), "SERVICES")
	}
	return printTable(a.stdout, head, rows)
}

// servicesWord counts the services that are ready and names the others.
func servicesWord(h *agboxv1.SandboxHandle) string {
	all := h.GetServiceStatus()
	if len(all) == 0 {
		return "-"
	}
	ready := 0
	var others []string
	for _, s := range all {
		if s.GetState() == agboxv1.ServiceState_SERVICE_STATE_READY {
			ready++
			continue
		}
		others = append(others, printable(s.GetName())+" "+enumWord(s.GetState().String(), "SERVICE_STATE_"))
	}
	word := fmt.Sprintf("%d/%d ready", ready, len(all))
	if len(others) > 0 {
		word += " (" + strings.Join(others, ", ") + ")"
	}
	return cut(word, 60)
}

// sandboxHead are the titles of the columns of sandboxRow.
var sandboxHead = []string{"NAME", "ID", "STATE", "IMAGE", "EXECS", "CREATED"}

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
