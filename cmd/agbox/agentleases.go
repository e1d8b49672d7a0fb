package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) agentLeasesCommand() *cobra.Command {
	var out format
	var broken string
	cmd := &cobra.Command{
		Use:   "leases [AGENT] [flags]",
		Short: "Print which resources agents hold and wait for",
		Long: `Print which resources agents hold and ask for, or only those of AGENT. VERDICT is
GRANTED for what an agent holds, WAIT for what it waits for, and DIE for what it asks
for again when it is woken. FENCE is the fencing number.

--break takes a resource away from AGENT. Its program is not told and may go on to use
it, so pause or kill the agent first.`,
		Example: `  agbox agent leases
  agbox agent leases fixer --break file:/workspace/main.go`,
		Args: arguments(0, 1, "at most one AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			of := ""
			if len(args) > 0 {
				of = args[0]
			}
			if broken != "" {
				if of == "" {
					return usagef("--break needs the AGENT that holds the resource.")
				}
				if _, err := c.BreakLease(ctx, of, broken); err != nil {
					return err
				}
			}
			list, err := c.Leases(ctx, of)
			if err != nil {
				return err
			}
			if out == formatJSON {
				return printJSONList(a.stdout, list)
			}
			return a.printLeases(list)
		}),
	}
	cmd.Flags().StringVar(&broken, "break", "", "first take this `RESOURCE` away from AGENT")
	addFormat(cmd, &out)
	return cmd
}

// printLeases prints leases as a table.
func (a *app) printLeases(list []*agboxv1.LeaseEntry) error {
	rows := make([][]string, len(list))
	for i, l := range list {
		fence := "-"
		if l.GetLease().GetFence() > 0 {
			fence = fmt.Sprint(l.GetLease().GetFence())
		}
		rows[i] = []string{
			printable(l.GetLease().GetResource()), strings.ToLower(strings.TrimPrefix(l.GetLease().GetMode().String(), "LEASE_MODE_")),
			printable(cmp.Or(l.GetName(), l.GetAgentId())), strings.TrimPrefix(l.GetVerdict().String(), "LEASE_VERDICT_"), fence,
			orDash(strings.Join(l.GetWaitsFor(), ",")),
		}
	}
	return printTable(a.stdout, []string{"RESOURCE", "MODE", "AGENT", "VERDICT", "FENCE", "WAITS FOR"}, rows)
}
