package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type agentJournalOptions struct {
	incarnation uint32
	follow      bool
}

func (a *app) agentJournalCommand() *cobra.Command {
	var o agentJournalOptions
	cmd := &cobra.Command{
		Use:   "journal [-f] AGENT [flags]",
		Short: "Print what an agent has reported",
		Long: `Print what the incarnations of an agent have reported with agbox-agent, oldest first.
Each line is a JSON object: the number of the incarnation, the time in milliseconds
since 1970, the report (op) and its values. With -f, new reports are printed as they
come, also those of later incarnations.`,
		Example: `  agbox agent journal fixer
  agbox agent journal fixer --incarnation 2
  agbox agent journal -f fixer`,
		Args: arguments(1, 1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if o.follow && o.incarnation != 0 {
				return usagef("--follow goes on with all incarnations: leave out --incarnation.")
			}
			id, err := a.agent(ctx, c, args[0], reads)
			switch {
			case err != nil:
				return err
			case o.follow:
				return o.print(a.stdout, c.FollowJournal(ctx, id))
			}
			out := bufio.NewWriter(a.stdout)
			err = o.print(out, c.ReadJournal(ctx, id, o.incarnation))
			if failed := out.Flush(); err == nil {
				err = failed
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.Uint32VarP(&o.incarnation, "incarnation", "n", 0, "only the incarnation with this `NUMBER`")
	f.BoolVarP(&o.follow, "follow", "f", false, "keep printing new reports until the agent has ended")
	return cmd
}

// print prints rows until they end or are of another incarnation than the one asked for.
func (o *agentJournalOptions) print(out io.Writer, rows iter.Seq2[*agboxv1.ReadJournalResponse, error]) error {
	for row, err := range rows {
		switch {
		case err != nil:
			return err
		case o.incarnation != 0 && row.GetIncarnation() != o.incarnation:
			return nil
		}
		if _, err := fmt.Fprintf(out, "{\"incarnation\":%d,%s\n", row.GetIncarnation(), strings.TrimPrefix(row.GetJson(), "{")); err != nil {
			return err
		}
	}
	return nil
}
