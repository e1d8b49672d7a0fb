package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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
			if err != nil {
				return err
			}
			return printList(a, out, list, checkpointColumns, eachRow(checkpointRow))
		}),
	}
	addTable(cmd, &out)
	return cmd
}

// checkpointColumns are the columns of checkpointRow.
var checkpointColumns = []view.Column{
	{Title: "NUMBER", Right: true}, {Title: "KIND"}, {Title: "TURN", Right: true}, {Title: "STEP", Right: true}, {Title: "BYTES", Right: true},
	{Title: "CRC32", Omit: 1}, {Title: "RESUME POINT", Min: 12},
}

func checkpointRow(k *agboxv1.AgentCheckpoint) []view.Cell {
	return cells(
		k.GetSeq(), strings.TrimPrefix(k.GetKind().String(), "CHECKPOINT_KIND_"), k.GetTurn(), k.GetStep(),
		k.GetBytes(), fmt.Sprintf("%08x", k.GetCrc32()), orDash(k.GetResumePoint()),
	)
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
			return cmp.Or(err, out.Flush())
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
			return printList(a, out, list, leaseColumns, func(list []*agboxv1.LeaseEntry) [][]view.Cell {
				return leaseRows(list, agentNames(ctx, c, list), scopeNames(ctx, c, list))
			})
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
		names[l.GetAgentId()] = agentName(l)
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

// leaseColumns are the columns of leaseRows.
var leaseColumns = []view.Column{
	{Title: "RESOURCE", Min: 14}, {Title: "MODE", Omit: 2}, {Title: "AGENT", Min: 8}, {Title: "VERDICT"}, {Title: "FENCE", Right: true, Omit: 3},
	{Title: "WAITS FOR", Min: 9, Omit: 1}, {Title: "SCOPE", Min: 9, Omit: 4},
}

func leaseRows(list []*agboxv1.LeaseEntry, names, scopes map[string]string) [][]view.Cell {
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
		rows[i] = cells(
			l.GetLease().GetResource(), enumWord(l.GetLease().GetMode().String(), "LEASE_MODE_"),
			agentName(l), stateCell(strings.TrimPrefix(l.GetVerdict().String(), "LEASE_VERDICT_")), fence,
			orDash(strings.Join(waits, ",")), scopes[l.GetScope()],
		)
	}
	return rows
}
