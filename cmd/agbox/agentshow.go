package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type agentListOptions struct {
	request agboxv1.ListAgentsRequest
	quiet   bool
	filters []string
	output  output
}

func (a *app) agentListCommand() *cobra.Command {
	o := new(agentListOptions)
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Short:             "List agents, oldest first",
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.with(func(ctx context.Context, c *client.Client, _ []string) error { return o.run(ctx, a, c) }),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.request.All, "all", "a", false, "list agents that have ended too")
	f.StringVar(&o.request.SandboxId, "sandbox", "", "only agents in `SANDBOX`")
	f.StringVar(&o.request.Stack, "stack", "", "only agents in the stack `NAME`")
	f.StringVar(&o.request.Class, "class", "", "only agents of `CLASS`")
	f.StringVar(&o.request.Parent, "parent", "", "only children of `AGENT`")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	addTable(cmd, &o.output)
	addTemplate(cmd, &o.output)
	addFilter(cmd, &o.filters, agentFilters)
	return cmd
}

func (o *agentListOptions) run(ctx context.Context, a *app, c *client.Client) error {
	if filtersBy(o.filters, "state", "status") {
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
	if list, err = filtered(list, o.filters, agentFilters); err != nil {
		return err
	}
	switch {
	case o.quiet:
		for _, g := range list {
			fmt.Fprintln(a.stdout, g.GetAgentId())
		}
		return nil
	case o.output.raw():
		return printItems(a, o.output, list)
	}
	names, err := namesFor(ctx, c, list)
	if err != nil {
		return err
	}
	rows := make([][]view.Cell, len(list))
	for i, g := range list {
		rows[i] = []view.Cell{
			view.Text(orDash(g.GetName())), view.Text(g.GetAgentId()), stateCell(agentState(g)), view.Text(orDash(g.GetClass())),
			sandboxCell(g, names), view.Text(fmt.Sprint(g.GetIncarnation())), view.Text(fmt.Sprint(g.GetCrashes())),
			a.sinceCell(g.GetCreatedAt()), view.Text(orDash(g.GetParent())), view.Text(orDash(g.GetSandboxId())), view.Text(agentNote(g)),
		}
	}
	return a.printTable(o.output, agentColumns, rows)
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
	return view.Text(orDash(firstOf(names[g.GetSandboxId()], g.GetSandboxId())))
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
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := a.agent(ctx, c, args[0], reads)
			if err != nil {
				return err
			}
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
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := a.agent(ctx, c, args[0], reads)
			if err != nil {
				return err
			}
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

type agentLogsOptions struct {
	follow bool
	style  logsStyle
	format format
}

func (a *app) agentLogsCommand() *cobra.Command {
	var o agentLogsOptions
	cmd := &cobra.Command{
		Use:   "logs [-f] AGENT [flags]",
		Short: "Show the output of an agent's incarnations, one after the other",
		Args:  arguments(1, 1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := a.agent(ctx, c, args[0], reads)
			if err != nil {
				return err
			}
			if !o.follow {
				return o.run(ctx, a, c, id)
			}
			return a.whileWaiting(ctx, c, id, false, func() error { return o.run(ctx, a, c, id) })
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "keep showing new output, also of later incarnations, until the agent has ended")
	f.BoolVarP(&o.style.times, "timestamps", "t", false, "begin each line with the time of its first byte")
	f.BoolVar(&o.style.strip, "strip-ansi", false, "remove colours and other escape sequences")
	addFormat(cmd, &o.format)
	return cmd
}

// run prints the logs of the incarnations that have begun. If it follows, it waits for the
// next one until the agent has ended.
func (o *agentLogsOptions) run(ctx context.Context, a *app, c *client.Client, id string) error {
	g, err := c.GetAgent(ctx, id)
	if err != nil {
		return err
	}
	p := a.logPrinter(o.style, o.format)
	printed := uint32(0)
	for ev, err := range c.WatchAgents(ctx, g.GetAgentId(), 0) {
		if err != nil {
			return err
		}
		if ev.GetBegun() != nil {
			printed = ev.GetIncarnation()
			if err := o.print(ctx, c, p, ev); err != nil {
				return err
			}
		}
		switch {
		case ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED, ev.GetType() == agboxv1.AgentEventType_AGENT_DELETED:
			return nil
		case !o.follow && printed >= g.GetIncarnation() && ev.GetSequence() >= g.GetLastSequence():
			return nil
		}
	}
	return nil
}

// print prints the log of one incarnation. begun comes before its command is started.
func (o *agentLogsOptions) print(ctx context.Context, c *client.Client, p *logPrinter, begun *agboxv1.AgentEvent) error {
	execID := begun.GetBegun().GetExecId()
	e, err := c.GetExec(ctx, execID)
	if o.follow && errors.Is(err, client.ErrNotFound) {
		awaitStart(ctx, c, begun)
		e, err = c.GetExec(ctx, execID)
	}
	if errors.Is(err, client.ErrNotFound) {
		return nil // its sandbox was lost before it was started, or its log was deleted
	}
	if err != nil {
		return err
	}
	for item, err := range c.FollowLogs(ctx, execID, client.LogOptions{Follow: o.follow}) {
		if err != nil {
			return flushed(p, err)
		}
		if err := p.print(e, item); err != nil {
			return err
		}
	}
	return nil
}

// awaitStart waits until the command of an incarnation is started, or the incarnation has ended.
func awaitStart(ctx context.Context, c *client.Client, begun *agboxv1.AgentEvent) {
	ctx, over := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer over()
	watching.Go(func() {
		defer over()
		for ev, err := range c.WatchAgents(ctx, begun.GetAgentId(), begun.GetPosition()) {
			if err != nil || ev.GetEnd() != nil {
				return
			}
		}
	})
	for ev, err := range c.Events(ctx, begun.GetBegun().GetSandboxId(), 0) {
		if err != nil || ev.GetExec().GetExecId() == begun.GetBegun().GetExecId() {
			return
		}
	}
}

func (a *app) agentWaitCommand() *cobra.Command {
	var tree bool
	cmd := &cobra.Command{
		Use:   "wait AGENT... [flags]",
		Short: "Wait until agents have ended, and print their states",
		Long: `Wait until agents have ended, and print the state of each. The exit code is 0 if all
of them are COMPLETED, else 1.

With --tree it also waits for all agents below them, also for those that are spawned
meanwhile, and prints name and state of each when it has ended.

If one of them is ORPHANED meanwhile, a note on stderr says how to decide about it.`,
		Example: `  agbox agent wait fixer
  agbox agent wait --tree planner`,
		Args: arguments(1, -1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, args, func(ref string) error {
				id, err := a.agent(ctx, c, ref, reads)
				if err != nil {
					return err
				}
				return a.whileWaiting(ctx, c, id, tree, func() error {
					if tree {
						return a.waitTree(ctx, c, id)
					}
					g, err := c.WaitAgent(ctx, id)
					if err != nil {
						return err
					}
					fmt.Fprintln(a.stdout, g.GetWord())
					return agentOutcome(g)
				})
			})
		}),
	}
	cmd.Flags().BoolVar(&tree, "tree", false, "also wait for all agents below")
	return cmd
}

// waitTree waits for an agent and all below it. The error is about the first that is not
// COMPLETED.
func (a *app) waitTree(ctx context.Context, c *client.Client, ref string) error {
	var failed error
	err := c.WaitAgentTree(ctx, ref, func(g *agboxv1.Agent) error {
		failed = cmp.Or(failed, agentOutcome(g))
		_, err := fmt.Fprintf(a.stdout, "%s\t%s\n", printable(cmp.Or(g.GetName(), g.GetAgentId())), g.GetWord())
		return err
	})
	return cmp.Or(err, failed)
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
