package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) agentLeasesCommand() *cobra.Command {
	var out output
	var broken string
	cmd := &cobra.Command{
		Use:   "leases [AGENT] [flags]",
		Short: "Print which resources agents hold and wait for",
		Long: `Print which resources agents hold and ask for, or only those of AGENT. VERDICT is
GRANTED for what an agent holds, WAIT for what it waits for, and DIE for what it asks
for again when it is woken. FENCE is the fencing number. Equal names mean the same
resource only where SCOPE is the same: within a sandbox or a stack.

--break takes a resource away from AGENT. Its program is not told and may go on to use
it, so pause or kill the agent first.`,
		Example: `  agbox agent leases
  agbox agent leases fixer --break file:/workspace/main.go`,
		Args: arguments(0, 1, "at most one AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			of := ""
			if len(args) > 0 {
				var err error
				if of, err = a.agent(ctx, c, args[0], purpose(broken != "")); err != nil {
					return err
				}
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
			if out.format == formatJSON {
				return printJSONList(a.stdout, list)
			}
			return a.printLeases(out, list, agentNames(ctx, c, list), scopeNames(ctx, c, list))
		}),
	}
	cmd.Flags().StringVar(&broken, "break", "", "first take this `RESOURCE` away from AGENT")
	addTable(cmd, &out)
	return cmd
}

// agentNames are the names of the agents that others wait for, by their ids. An agent without
// one, or that was removed in between, has its id.
func agentNames(ctx context.Context, c *client.Client, list []*agboxv1.LeaseEntry) map[string]string {
	names := make(map[string]string)
	for _, l := range list {
		names[l.GetAgentId()] = cmp.Or(l.GetName(), l.GetAgentId())
	}
	for _, l := range list {
		for _, id := range l.GetWaitsFor() {
			if names[id] == "" {
				g, _ := c.GetAgent(ctx, id)
				names[id] = cmp.Or(g.GetName(), id)
			}
		}
	}
	return names
}

// scopeNames are the scopes of leases with the names of sandboxes and stacks, as far as they have
// one.
func scopeNames(ctx context.Context, c *client.Client, list []*agboxv1.LeaseEntry) map[string]string {
	names := make(map[string]string)
	for _, l := range list {
		kind, id, _ := strings.Cut(l.GetScope(), ":")
		if names[l.GetScope()] != "" {
			continue
		}
		names[l.GetScope()] = l.GetScope()
		switch kind {
		case "sandbox":
			sb, _ := c.GetSandbox(ctx, id)
			names[l.GetScope()] = "sandbox " + cmp.Or(sb.GetSandbox().GetName(), id)
		case "stack":
			root, _ := c.GetAgent(ctx, id)
			names[l.GetScope()] = "stack " + cmp.Or(root.GetStack(), id)
		}
	}
	return names
}

// printLeases prints leases as a table.
func (a *app) printLeases(out output, list []*agboxv1.LeaseEntry, names, scopes map[string]string) error {
	rows := make([][]view.Cell, len(list))
	for i, l := range list {
		fence := "-"
		if l.GetLease().GetFence() > 0 {
			fence = fmt.Sprint(l.GetLease().GetFence())
		}
		var waits []string
		for _, id := range l.GetWaitsFor() {
			waits = append(waits, names[id])
		}
		rows[i] = []view.Cell{
			view.Text(l.GetLease().GetResource()), view.Text(enumWord(l.GetLease().GetMode().String(), "LEASE_MODE_")),
			view.Text(cmp.Or(l.GetName(), l.GetAgentId())), stateCell(strings.TrimPrefix(l.GetVerdict().String(), "LEASE_VERDICT_")), view.Text(fence),
			view.Text(orDash(strings.Join(waits, ","))), view.Text(scopes[l.GetScope()]),
		}
	}
	return a.printTable(out, []view.Column{
		{Title: "RESOURCE", Min: 14}, {Title: "MODE", Omit: 2}, {Title: "AGENT", Min: 8}, {Title: "VERDICT"}, {Title: "FENCE", Right: true, Omit: 3},
		{Title: "WAITS FOR", Min: 9, Omit: 1}, {Title: "SCOPE", Min: 9, Omit: 4},
	}, rows)
}
