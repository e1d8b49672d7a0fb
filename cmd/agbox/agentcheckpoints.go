package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
)

func (a *app) agentCheckpointsCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "checkpoints AGENT [NUMBER] [flags]",
		Short: "List the checkpoints of an agent, or print one",
		Long: `List the checkpoints of an agent that are kept, which are the newest five. The next
incarnation begins with the newest one that is whole.

With a NUMBER, print the file of that checkpoint: a JSON object with what the program
saved as its member "state".`,
		Example: `  agbox agent checkpoints fixer
  agbox agent checkpoints fixer 12`,
		Args: arguments(1, 2, "an AGENT, and at most one NUMBER"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := a.agent(ctx, c, args[0], reads)
			if err != nil {
				return err
			}
			if len(args) == 2 {
				return a.printCheckpoint(ctx, c, id, args[1])
			}
			list, err := c.ListCheckpoints(ctx, id)
			switch {
			case err != nil:
				return err
			case out.format == formatJSON:
				return printJSONList(a.stdout, list)
			}
			rows := make([][]view.Cell, len(list))
			for i, k := range list {
				rows[i] = cells(
					fmt.Sprint(k.GetSeq()), strings.TrimPrefix(k.GetKind().String(), "CHECKPOINT_KIND_"), fmt.Sprint(k.GetTurn()), fmt.Sprint(k.GetStep()),
					fmt.Sprint(k.GetBytes()), fmt.Sprintf("%08x", k.GetCrc32()), orDash(k.GetResumePoint()),
				)
			}
			return a.printTable(out, []view.Column{
				{Title: "NUMBER", Right: true}, {Title: "KIND"}, {Title: "TURN", Right: true}, {Title: "STEP", Right: true}, {Title: "BYTES", Right: true},
				{Title: "CRC32", Omit: 1}, {Title: "RESUME POINT", Min: 12},
			}, rows)
		}),
	}
	addTable(cmd, &out)
	return cmd
}

// printCheckpoint prints the file of a checkpoint.
func (a *app) printCheckpoint(ctx context.Context, c *client.Client, agent, number string) error {
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || seq == 0 {
		return usagef("%s is no NUMBER of a checkpoint: 1, 2, 3, ...", printable(number))
	}
	_, file, err := c.GetCheckpoint(ctx, agent, seq)
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(file)
	return err
}

// fromCheckpoint splits AGENT[@NUMBER].
func fromCheckpoint(text string) (agent string, seq uint64, err error) {
	agent, number, has := strings.Cut(text, "@")
	if !has {
		return agent, 0, nil
	}
	seq, err = strconv.ParseUint(number, 10, 64)
	if err != nil || seq == 0 || agent == "" {
		return "", 0, usagef("--from %s is no AGENT@NUMBER, for example fixer@12.", printable(text))
	}
	return agent, seq, nil
}
