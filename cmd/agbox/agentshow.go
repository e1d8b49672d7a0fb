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

type agentListOptions struct {
	listing[*agboxv1.Agent]
	request agboxv1.ListAgentsRequest
}

func (a *app) agentListCommand() *cobra.Command {
	o := &agentListOptions{listing: listing[*agboxv1.Agent]{id: (*agboxv1.Agent).GetAgentId, keys: agentFilters}}
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List agents, oldest first",
		RunE:  a.runs(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.request.All, "all", "a", false, "list agents that have ended too")
	f.StringVar(&o.request.SandboxId, "sandbox", "", "only agents in `SANDBOX`")
	f.StringVar(&o.request.Stack, "stack", "", "only agents in the stack `NAME`")
	f.StringVar(&o.request.Class, "class", "", "only agents of `CLASS`")
	f.StringVar(&o.request.Parent, "parent", "", "only children of `AGENT`")
	o.addFlags(cmd)
	return cmd
}

func (o *agentListOptions) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	if o.filtersBy("state", "status") {
		o.request.All = true
	}
	var err error
	if o.request.SandboxId != "" {
		if o.request.SandboxId, err = a.sandbox(ctx, c, o.request.SandboxId, reads); err != nil {
			return err
		}
	}
	if o.request.Parent != "" {
		if o.request.Parent, err = a.agent(ctx, c, o.request.Parent, reads); err != nil {
			return err
		}
	}
	list, err := c.ListAgents(ctx, &o.request)
	if err != nil {
		return err
	}
	if list, err = o.filtered(list); err != nil {
		return err
	}
	var names map[string]string
	if o.tabular() {
		if names, err = namesFor(ctx, c, list); err != nil {
			return err
		}
	}
	return o.print(a, list, agentColumns, eachRow(func(g *agboxv1.Agent) []view.Cell {
		return cells(
			orDash(g.GetName()), g.GetAgentId(), stateCell(agentState(g)), orDash(g.GetClass()),
			sandboxCell(g, names), g.GetIncarnation(), g.GetCrashes(),
			a.sinceCell(g.GetCreatedAt()), orDash(g.GetParent()), orDash(g.GetSandboxId()), agentNote(g),
		)
	}))
}

// agentState is the state of an agent as tables show it. One whose program runs and has not said
// or shown that it works is starting.
func agentState(g *agboxv1.Agent) string {
	starts := g.GetLifecycle() == agboxv1.AgentLifecycle_AGENT_LIFECYCLE_HYDRATING
	switch g.GetState() {
	case agboxv1.AgentState_AGENT_STATE_PENDING:
		starts = true
	case agboxv1.AgentState_AGENT_STATE_PAUSED:
		switch g.GetPauseReason() {
		case agboxv1.PauseReason_PAUSE_REASON_CRASH, agboxv1.PauseReason_PAUSE_REASON_ORPHANED,
			agboxv1.PauseReason_PAUSE_REASON_SUCCESSION, agboxv1.PauseReason_PAUSE_REASON_DRAINED: // they end by a start
			starts = true
		}
	}
	if g.GetRunning() && starts {
		return g.GetWord() + " (starting)"
	}
	return g.GetWord()
}

// agentColumns are the columns of the list of agents.
var agentColumns = []view.Column{
	{Title: "NAME", Min: 8}, {Title: "ID", Min: 12, Omit: 1}, {Title: "STATE"}, {Title: "CLASS", Min: 5, Omit: 5},
	{Title: "SANDBOX", Min: 8, Omit: 4}, {Title: "RUN", Right: true, Omit: 6}, {Title: "CRASHES", Right: true, Omit: 7},
	{Title: "CREATED", Omit: 3}, {Title: "PARENT", Wide: true}, {Title: "SANDBOX ID", Wide: true}, {Title: "NOTE", Min: 10, Omit: 2},
}

// namesFor returns the names of sandboxes by their ids, as far as the agents need them.
func namesFor(ctx context.Context, c *client.Client, agents []*agboxv1.Agent) (map[string]string, error) {
	if len(agents) == 0 {
		return nil, nil
	}
	return sandboxNames(ctx, c)
}

// sandboxCell shows the sandbox of an agent: its name, or its id if it has none.
func sandboxCell(g *agboxv1.Agent, names map[string]string) view.Cell {
	return view.Text(orDash(cmp.Or(names[g.GetSandboxId()], g.GetSandboxId())))
}

// agentNote is the sentence that says most about an agent: of agbox, else what its program
// said last, else its title.
func agentNote(g *agboxv1.Agent) string {
	for _, s := range []string{g.GetDegraded(), g.GetMessage(), g.GetProgress().GetLastMessage(), g.GetTitle()} {
		if s != "" {
			return strings.Join(strings.Fields(s), " ")
		}
	}
	return "-"
}

func (a *app) agentInspectCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "inspect AGENT [flags]",
		Short: "Show everything about an agent",
		Args:  arguments(1, 1, "an AGENT"),
		RunE: a.withAgent(func(ctx context.Context, c *client.Client, id string) error {
			g, err := c.GetAgent(ctx, id)
			switch {
			case err != nil:
				return err
			case out == formatJSON:
				return printJSONLine(a.stdout, g)
			}
			return printOutline(a.stdout, g, a.tableOptions(output{}).Width)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) agentEventsCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events [-f] AGENT [flags]",
		Short: "Show what happened to an agent, as lines of JSON",
		Args:  arguments(1, 1, "an AGENT"),
		RunE: a.withAgent(func(ctx context.Context, c *client.Client, id string) error {
			g, err := c.GetAgent(ctx, id)
			if err != nil {
				return err
			}
			for ev, err := range c.WatchAgents(ctx, g.GetAgentId(), 0) {
				if err != nil {
					return err
				}
				if err := printJSONLine(a.stdout, ev); err != nil {
					return err
				}
				if ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED || !follow && ev.GetSequence() >= g.GetLastSequence() {
					return nil
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep showing new events until the agent has ended")
	return cmd
}

func (a *app) agentResolveCommand() *cobra.Command {
	var revive, reap bool
	cmd := &cobra.Command{
		Use:   "resolve AGENT... {--revive | --reap} [flags]",
		Short: "Decide about orphaned agents, which have lost their sandbox",
		Long: `Decide about agents that are ORPHANED, because their container, Docker or the machine
was lost. Those spawned with --on-loss ask wait for that; others wait until their sandbox
can be started. With --revive the next incarnation begins, and the sandbox is started for
it; an agent whose sandbox cannot be started stays ORPHANED. With --reap the agents are
ABORTED.`,
		Args: arguments(1, -1, "an AGENT"),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		verdict := agboxv1.AgentVerdict_AGENT_VERDICT_REVIVE
		switch {
		case revive == reap:
			return usagef("%s needs either --revive or --reap.", cmd.CommandPath())
		case reap:
			verdict = agboxv1.AgentVerdict_AGENT_VERDICT_REAP
		}
		return a.changeAgents(ctx, c, args, func(id string) (*agboxv1.Agent, error) { return c.ResolveAgent(ctx, id, verdict) })
	})
	cmd.Flags().BoolVar(&revive, "revive", false, "go on in a new incarnation")
	cmd.Flags().BoolVar(&reap, "reap", false, "end the agents")
	return cmd
}

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
		var names map[string]string
		if err == nil && !out.raw() {
			names, err = namesFor(ctx, c, list)
		}
		if err != nil {
			return err
		}
		return printList(a, out, shown(list, all), treeColumns, func(list []*agboxv1.Agent) [][]view.Cell { return treeRows(list, names) })
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

// treeRows show agents, each after its parent, indented below it.
func treeRows(list []*agboxv1.Agent, names map[string]string) [][]view.Cell {
	depth := make(map[string]int)
	rows := make([][]view.Cell, len(list))
	for i, g := range list {
		level := 0
		if above, known := depth[g.GetParent()]; known && i > 0 {
			level = above + 1
		}
		depth[g.GetAgentId()] = level
		rows[i] = cells(
			strings.Repeat("  ", level)+agentName(g), g.GetAgentId(), stateCell(agentState(g)),
			sandboxCell(g, names), g.GetIncarnation(), g.GetCrashes(),
			treeNote(g),
		)
	}
	return rows
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

func isAgentState(g *agboxv1.Agent, value string) bool { return strings.EqualFold(g.GetWord(), value) }

// agentFilters are the keys of agbox agent ls.
var agentFilters = filterKeys[*agboxv1.Agent]{
	"id":      func(g *agboxv1.Agent, v string) bool { return strings.HasPrefix(g.GetAgentId(), v) },
	"name":    func(g *agboxv1.Agent, v string) bool { return strings.Contains(g.GetName(), v) },
	"state":   isAgentState,
	"status":  isAgentState,
	"class":   func(g *agboxv1.Agent, v string) bool { return g.GetClass() == v },
	"sandbox": func(g *agboxv1.Agent, v string) bool { return g.GetSandboxId() == v },
	"parent":  func(g *agboxv1.Agent, v string) bool { return g.GetParent() == v },
}
