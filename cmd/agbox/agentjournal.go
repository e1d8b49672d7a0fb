package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

func (a *app) agentJournalCommand() *cobra.Command {
	var incarnation uint32
	cmd := &cobra.Command{
		Use:   "journal AGENT [flags]",
		Short: "Print what an agent has reported",
		Long: `Print what the incarnations of an agent have reported with agbox-agent, oldest first.
Each line is a JSON object: the number of the incarnation, the time in milliseconds
since 1970, the report (op) and its values.`,
		Example: `  agbox agent journal fixer
  agbox agent journal fixer --incarnation 2`,
		Args: arguments(1, 1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			out := bufio.NewWriter(a.stdout)
			for row, err := range c.ReadJournal(ctx, args[0], incarnation) {
				switch {
				case err != nil:
					_ = out.Flush()
					return err
				case incarnation != 0 && row.GetIncarnation() != incarnation:
					return out.Flush()
				}
				if _, err := fmt.Fprintf(out, "{\"incarnation\":%d,%s\n", row.GetIncarnation(), strings.TrimPrefix(row.GetJson(), "{")); err != nil {
					return err
				}
			}
			return out.Flush()
		}),
	}
	cmd.Flags().Uint32VarP(&incarnation, "incarnation", "n", 0, "only the incarnation with this `NUMBER`")
	return cmd
}
