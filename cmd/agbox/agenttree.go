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

func (a *app) agentTreeCommand() *cobra.Command {
	var all bool
	var out format
	cmd := &cobra.Command{
		Use:   "tree [AGENT] [flags]",
		Short: "Show agents with their descendants",
		Long: `Show agents with their descendants: below AGENT, or below init, the root of all. With
--format json it prints the same agents as "agbox agent ls", each after its parent.`,
		Args: arguments(0, 1, "one AGENT"),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		root := "init"
		if len(args) > 0 {
			root = args[0]
		}
		list, err := c.AgentTree(ctx, root)
		switch {
		case err != nil:
			return err
		case out == formatJSON:
			return printJSONList(a.stdout, shown(list, all))
		}
		return a.printTree(shown(list, all))
	})
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show agents that have ended too")
	addFormat(cmd, &out)
	return cmd
}

// shown leaves out agents that have ended, unless all are wanted. The descendants of such an
// agent have ended too, or are being adopted.
func shown(list []*agboxv1.Agent, all bool) []*agboxv1.Agent {
	var shown []*agboxv1.Agent
	for i, g := range list {
		if all || i == 0 || g.GetEndedAt() == nil {
			shown = append(shown, g)
		}
	}
	return shown
}

// printTree prints agents, each after its parent, indented below it.
func (a *app) printTree(list []*agboxv1.Agent) error {
	depth := make(map[string]int)
	rows := make([][]string, len(list))
	for i, g := range list {
		level := 0
		if above, known := depth[g.GetParent()]; known && i > 0 {
			level = above + 1
		}
		depth[g.GetAgentId()] = level
		rows[i] = []string{
			strings.Repeat("  ", level) + cmp.Or(g.GetName(), g.GetAgentId()), g.GetAgentId(), g.GetWord(), orDash(cut(g.GetSandboxId(), 24)),
			fmt.Sprint(g.GetIncarnation()), fmt.Sprint(g.GetCrashes()), cut(printable(agentNote(g)), 60),
		}
	}
	return printTable(a.stdout, []string{"NAME", "ID", "STATE", "SANDBOX", "RUN", "CRASHES", "NOTE"}, rows)
}
