package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// commandWidth is how much of a command a message shows, in columns.
const commandWidth = 60

type psOptions struct {
	all     bool
	quiet   bool
	filters []string
	output  output
}

func (a *app) psCommand() *cobra.Command {
	var o psOptions
	cmd := &cobra.Command{
		Use:   "ps [-a] [SANDBOX] [flags]",
		Short: "List running commands; with -a also ended ones",
		Long: `List the running commands of SANDBOX, or of all sandboxes, newest first. With -a,
also list commands that have ended and are still kept; for those it shows the CPU
time and the peak memory.

The list includes the sandbox's own command, which comes from its file or its image.
Its name is main: "agbox logs SANDBOX/main" shows its output.`,
		Args:              arguments(0, 1, "one SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, append(args, "")[0])
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "also list commands that have ended")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	addTable(cmd, &o.output)
	addTemplate(cmd, &o.output)
	addFilter(cmd, &o.filters, execFilters(nil))
	return cmd
}

func (o *psOptions) run(ctx context.Context, a *app, c *client.Client, sandbox string) error {
	if filtersBy(o.filters, "state", "status", "exit", "exited") {
		o.all = true // only then are there commands that have ended
	}
	ids, err := a.resolved(ctx, c, ofSandbox, []string{sandbox}, reads)
	if err != nil {
		return err
	}
	list, err := o.list(ctx, c, ids[0])
	if err != nil {
		return err
	}
	var names map[string]string
	if len(list) > 0 && (len(o.filters) > 0 || !o.quiet && !o.output.raw()) {
		if names, err = sandboxNames(ctx, c); err != nil {
			return err
		}
	}
	if list, err = filtered(list, o.filters, execFilters(names)); err != nil {
		return err
	}
	// With -a they come by their ids, which are random.
	slices.SortStableFunc(list, func(x, y *agboxv1.ExecStatus) int {
		return y.GetStartedAt().AsTime().Compare(x.GetStartedAt().AsTime())
	})
	switch {
	case o.quiet:
		for _, e := range list {
			fmt.Fprintln(a.stdout, e.GetExecId())
		}
		return nil
	case o.output.raw():
		return printItems(a, o.output, list)
	}
	rows := make([][]view.Cell, len(list))
	for i, e := range list {
		rows[i] = a.execRow(e, names)
	}
	return a.printTable(o.output, o.columns(), rows)
}

// columns are the columns of execRow. Only commands that have ended have figures about
// what they used.
func (o *psOptions) columns() []view.Column {
	return []view.Column{
		{Title: "NAME", Min: 6},
		{Title: "EXEC", Min: 12, Omit: 1},
		{Title: "SANDBOX", Min: 7, Omit: 2},
		{Title: "STATE"},
		{Title: "EXIT", Right: true, Omit: 4},
		{Title: "STARTED", Omit: 3},
		{Title: "CPU", Right: true, Omit: 5, Wide: !o.all},
		{Title: "MEMORY", Right: true, Omit: 6, Wide: !o.all},
		{Title: "SANDBOX ID", Wide: true},
		{Title: "COMMAND", Min: 12},
	}
}

// sandboxNames are the names of all sandboxes, by their ids.
func sandboxNames(ctx context.Context, c *client.Client) (map[string]string, error) {
	handles, err := c.ListSandboxes(ctx, client.ListOptions{IncludeDeleted: true})
	names := make(map[string]string, len(handles))
	for _, h := range handles {
		names[h.GetSandboxId()] = h.GetName()
	}
	return names, err
}

func (o *psOptions) list(ctx context.Context, c *client.Client, sandbox string) ([]*agboxv1.ExecStatus, error) {
	if !o.all {
		return c.ListActiveExecs(ctx, sandbox)
	}
	sandboxes := []string{sandbox}
	if sandbox == "" {
		handles, err := c.ListSandboxes(ctx, client.ListOptions{})
		if err != nil {
			return nil, err
		}
		sandboxes = nil
		for _, h := range handles {
			sandboxes = append(sandboxes, h.GetSandboxId())
		}
	}
	var list []*agboxv1.ExecStatus
	for _, id := range sandboxes {
		for e, err := range c.ListExecs(ctx, id) {
			if err != nil {
				return nil, err
			}
			list = append(list, e)
		}
	}
	return list, nil
}

func (a *app) execRow(e *agboxv1.ExecStatus, names map[string]string) []view.Cell {
	exit := view.Text("-")
	if hasExit(e) {
		exit.Text = fmt.Sprint(e.GetExitCode())
		if e.GetExitCode() != 0 {
			exit.Style = view.Bad
		}
	}
	return []view.Cell{
		view.Text(orDash(e.GetName())), view.Text(e.GetExecId()), view.Text(firstOf(names[e.GetSandboxId()], e.GetSandboxId())),
		stateCell(execState(e) + endMarks(e)), exit, a.sinceCell(e.GetStartedAt()), view.Text(cpuTime(e)), view.Text(peakMemory(e)),
		view.Text(e.GetSandboxId()), view.Text(shellWords(e.GetCommand())),
	}
}

func hasExit(e *agboxv1.ExecStatus) bool { return view.HasExitCode(e.GetState(), e.GetExitCode()) }
