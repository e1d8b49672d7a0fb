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

func (a *app) agentTreeCommand() *cobra.Command {
	var all bool
	var out output
	cmd := &cobra.Command{
		Use:   "tree [AGENT] [flags]",
		Short: "Show agents with their descendants",
		Long: `Show agents with their descendants: below AGENT, or below init, the root of all. With
-o json it prints the same agents as "agbox agent ls", each after its parent.`,
		Args: arguments(0, 1, "one AGENT"),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		root := "init"
		if len(args) > 0 {
			var err error
			if root, err = a.agent(ctx, c, args[0], reads); err != nil {
				return err
			}
		}
		list, err := c.AgentTree(ctx, root)
		switch {
		case err != nil:
			return err
		case out.raw():
			return printItems(a, out, shown(list, all))
		}
		names, err := namesFor(ctx, c, list)
		if err != nil {
			return err
		}
		return a.printTree(out, shown(list, all), names)
	})
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show agents that have ended too")
	addTable(cmd, &out)
	addTemplate(cmd, &out)
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
func (a *app) printTree(out output, list []*agboxv1.Agent, names map[string]string) error {
	depth := make(map[string]int)
	rows := make([][]view.Cell, len(list))
	for i, g := range list {
		level := 0
		if above, known := depth[g.GetParent()]; known && i > 0 {
			level = above + 1
		}
		depth[g.GetAgentId()] = level
		rows[i] = []view.Cell{
			view.Text(strings.Repeat("  ", level) + cmp.Or(g.GetName(), g.GetAgentId())), view.Text(g.GetAgentId()), stateCell(agentState(g)),
			sandboxCell(g, names), view.Text(fmt.Sprint(g.GetIncarnation())), view.Text(fmt.Sprint(g.GetCrashes())),
			view.Text(treeNote(g)),
		}
	}
	return a.printTable(out, treeColumns, rows)
}

// treeNote begins with the stack of which an agent is the root, and what its border does.
func treeNote(g *agboxv1.Agent) string {
	switch note := heldNote(g); g.GetBorder() {
	case agboxv1.StackBorder_STACK_BORDER_ORDERS:
		return strings.TrimSuffix(fmt.Sprintf("stack %s, whose border orders and does not protect; %s", g.GetStack(), note), "; -")
	case agboxv1.StackBorder_STACK_BORDER_PROTECTS:
		return strings.TrimSuffix(fmt.Sprintf("stack %s; %s", g.GetStack(), note), "; -")
	default:
		return note
	}
}

// heldNote begins with who holds a child, if that is not as with most: its parent alone. Nobody
// must hold one that is detached.
func heldNote(g *agboxv1.Agent) string {
	held := g.GetLifetime() == agboxv1.AgentLifetime_AGENT_LIFETIME_HELD
	isChild := g.GetParent() != "" && g.GetParent() != "init"
	if g.GetEndedAt() != nil || !isChild && !held || g.GetLifetime() == agboxv1.AgentLifetime_AGENT_LIFETIME_UNSPECIFIED {
		return agentNote(g)
	}
	note := "detached; "
	switch others := len(g.GetHolders()); {
	case held && others == 0:
		note = "held by nobody; "
	case held && others == 1 && g.GetHolders()[0] == "agent:"+g.GetParent():
		note = "held by its parent; "
	case held:
		note = fmt.Sprintf("held by %d; ", others)
	}
	return strings.TrimSuffix(note+agentNote(g), "; -")
}

// treeColumns are the columns of the tree of agents.
var treeColumns = []view.Column{
	{Title: "NAME", Min: 12}, {Title: "ID", Min: 12, Omit: 1}, {Title: "STATE"}, {Title: "SANDBOX", Min: 8, Omit: 3},
	{Title: "RUN", Right: true, Omit: 4}, {Title: "CRASHES", Right: true, Omit: 5}, {Title: "NOTE", Min: 10, Omit: 2},
}
