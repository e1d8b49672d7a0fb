package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type lsOptions struct {
	deleted bool
	quiet   bool
	labels  []string
	filters []string
	output  output
}

func (a *app) lsCommand() *cobra.Command {
	var o lsOptions
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List sandboxes, newest first",
		Long: `List sandboxes, newest first. If the container engine does not answer, a line on stderr
says that the states are the last known ones; the exit code is 0.`,
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			return o.run(ctx, a, c)
		}),
	}
	f := cmd.Flags()
	f.BoolP("all", "a", false, "list also those that are stopped or have failed; always so")
	f.BoolVar(&o.deleted, "deleted", false, "list also those that are deleted")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	f.StringArrayVar(&o.labels, "label", nil, "only sandboxes with `KEY=VALUE` (repeatable)")
	addTable(cmd, &o.output)
	addTemplate(cmd, &o.output)
	addFilter(cmd, &o.filters, sandboxFilters)
	return cmd
}

func (o *lsOptions) run(ctx context.Context, a *app, c *client.Client) error {
	labels, err := assignments("label", o.labels)
	if err != nil {
		return err
	}
	deleted := o.deleted || filtersBy(o.filters, "state", "status") && slices.ContainsFunc(o.filters, func(f string) bool { return strings.HasSuffix(f, "=deleted") })
	list, err := c.ListSandboxes(ctx, client.ListOptions{IncludeDeleted: deleted, Labels: labels})
	if err != nil {
		return err
	}
	if list, err = filtered(list, o.filters, sandboxFilters); err != nil {
		return err
	}
	a.tellOfNoEngine(ctx, c)
	switch {
	case o.quiet:
		for _, h := range list {
			fmt.Fprintln(a.stdout, h.GetSandboxId())
		}
		return nil
	case o.output.raw():
		return printItems(a, o.output, list)
	}
	return a.printTable(o.output, sandboxColumns(list), a.sandboxRows(list))
}

// tellOfNoEngine says that the states of sandboxes are old if the engine does not answer.
func (a *app) tellOfNoEngine(ctx context.Context, c *client.Client) {
	p, err := c.Ping(ctx)
	if err != nil || p.GetEngine().GetReachable() || p.GetEngine().GetError() == "" {
		return // it is known to answer, or not known not to
	}
	a.say("The container engine does not answer, so states are the last known ones. `agbox daemon status` says why.")
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
		others = append(others, s.GetName()+" "+enumWord(s.GetState().String(), "SERVICE_STATE_"))
	}
	word := fmt.Sprintf("%d/%d ready", ready, len(all))
	if len(others) > 0 {
		word += " (" + strings.Join(others, ", ") + ")"
	}
	return word
}

// sandboxColumns are the columns of sandboxRows.
func sandboxColumns(list []*agboxv1.SandboxHandle) []view.Column {
	placed := slices.ContainsFunc(list, func(h *agboxv1.SandboxHandle) bool { return h.GetLabels()[folderLabel] != "" })
	served := slices.ContainsFunc(list, func(h *agboxv1.SandboxHandle) bool { return len(h.GetServiceStatus()) > 0 })
	return []view.Column{
		{Title: "NAME"},
		{Title: "ID", Min: 12, Omit: 1},
		{Title: "STATE"},
		{Title: "IMAGE", Min: 10, Omit: 2},
		{Title: "EXECS", Right: true, Omit: 5},
		{Title: "CREATED", Omit: 3},
		{Title: "FOLDER", Min: 12, Omit: 6, Wide: !placed},
		{Title: "SERVICES", Min: 10, Omit: 4, Wide: !served},
		{Title: "LABELS", Wide: true},
		{Title: "REASON", Wide: true},
	}
}

// sandboxRows show sandboxes, one in each row.
func (a *app) sandboxRows(list []*agboxv1.SandboxHandle) [][]view.Cell {
	rows, home, places := make([][]view.Cell, len(list)), a.host().Home, placesOf(list, placeOf)
	for i, h := range list {
		rows[i] = []view.Cell{
			view.Text(orDash(h.GetName())), view.Text(h.GetSandboxId()), stateCell(sandboxState(h)), view.Text(orDash(h.GetImage())),
			view.Text(fmt.Sprint(h.GetActiveExecs())), a.sinceCell(h.GetCreatedAt()), view.Text(folderWord(h, places[i].gone, home)), view.Text(servicesWord(h)),
			view.Text(labelsWord(h.GetLabels())), view.Text(orDash(firstOf(h.GetErrorMessage(), h.GetDegradedReason()))),
		}
	}
	return rows
}

// folderWord is the folder of a sandbox, and whether it is gone.
func folderWord(h *agboxv1.SandboxHandle, gone bool, home string) string {
	word := orDash(tilde(h.GetLabels()[folderLabel], home))
	if gone {
		word += " (gone)"
	}
	return word
}

// labelsWord lists labels in the order of their names.
func labelsWord(labels map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, key+"="+labels[key])
	}
	return orDash(strings.Join(words, ","))
}
