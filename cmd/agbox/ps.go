package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// commandWidth is how much of a command the table shows, in characters.
const commandWidth = 60

// usedColumn is the index of the columns for CPU time and peak memory.
const usedColumn = 6

type psOptions struct {
	all    bool
	quiet  bool
	format format
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
	addFormat(cmd, &o.format)
	return cmd
}

func (o *psOptions) run(ctx context.Context, a *app, c *client.Client, sandbox string) error {
	list, err := o.list(ctx, c, sandbox)
	// With -a they come by their ids, which are random.
	slices.SortStableFunc(list, func(x, y *agboxv1.ExecStatus) int {
		return y.GetStartedAt().AsTime().Compare(x.GetStartedAt().AsTime())
	})
	switch {
	case err != nil:
		return err
	case o.quiet:
		for _, e := range list {
			fmt.Fprintln(a.stdout, e.GetExecId())
		}
		return nil
	case o.format == formatJSON:
		return printJSONList(a.stdout, list)
	}
	head := []string{"EXEC", "NAME", "SANDBOX", "STATE", "EXIT", "STARTED", "COMMAND"}
	rows := make([][]string, len(list))
	for i, e := range list {
		rows[i] = a.execRow(e)
		if o.all { // only commands that have ended have these figures
			rows[i] = slices.Insert(rows[i], usedColumn, cpuTime(e), peakMemory(e))
		}
	}
	if o.all {
		head = slices.Insert(head, usedColumn, "CPU", "MEMORY")
	}
	return printTable(a.stdout, head, rows)
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

func (a *app) execRow(e *agboxv1.ExecStatus) []string {
	exit := "-"
	if e.GetState() == agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetState() == agboxv1.ExecState_EXEC_STATE_CANCELLED {
		exit = fmt.Sprint(e.GetExitCode())
	}
	return []string{
		e.GetExecId(),
		orDash(e.GetName()),
		e.GetSandboxId(),
		execState(e) + endMarks(e),
		exit,
		a.since(e.GetStartedAt()),
		cut(shellWords(e.GetCommand()), commandWidth),
	}
}
