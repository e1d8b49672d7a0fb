package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type statsOptions struct {
	noStream bool
	output   output
}

func (a *app) statsCommand() *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{
		Use:   "stats [SANDBOX...] [flags]",
		Short: "Show the resource usage of the containers of sandboxes, every second",
		Long: `Show every second what the running containers of the sandboxes use; without SANDBOX,
of all sandboxes. CPU is in percent of one processor: 150 % is one and a half. NET is
the bytes received and sent, BLOCK the bytes read and written, since the start of the
container. With -o json each round is one line.`,
		Args:              arguments(0, -1, "SANDBOXES"),
		ValidArgsFunction: a.completeSandboxes(-1),
		RunE:              a.runs(o.run),
	}
	cmd.Flags().BoolVar(&o.noStream, "no-stream", false, "show the usage once and exit")
	addTable(cmd, &o.output)
	return cmd
}

func (o *statsOptions) run(ctx context.Context, a *app, c *client.Client, refs []string) error {
	refs, err := a.resolved(ctx, c, ofSandbox, refs, reads)
	if err != nil {
		return err
	}
	// Overwrite the last table only on a terminal.
	over := a.outputSize() != nil && !o.noStream
	for round, err := range c.Stats(ctx, refs, o.noStream) {
		if err != nil {
			return err
		}
		if o.output.format == formatJSON {
			if err := printJSONLine(a.stdout, round); err != nil {
				return err
			}
			continue
		}
		text := view.Render(statsColumns, collect(round.GetContainers(), statsRow), a.tableOptions(o.output))
		if over {
			// Overwriting lines instead of clearing the screen avoids flicker.
			text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		}
		if _, err := io.WriteString(a.stdout, text); err != nil {
			return err
		}
	}
	return nil
}

// statsColumns are the columns of statsRow.
var statsColumns = []view.Column{
	{Title: "SANDBOX", Min: 8}, {Title: "CONTAINER", Min: 7}, {Title: "CPU", Right: true}, {Title: "MEMORY / LIMIT"},
	{Title: "NET IN / OUT", Omit: 2}, {Title: "BLOCK READ / WRITTEN", Omit: 3}, {Title: "PIDS", Omit: 1},
}

func statsRow(s *agboxv1.ContainerStats) []view.Cell {
	pair := func(a, b uint64) string { return byteCount(int64(a)) + " / " + byteCount(int64(b)) }
	pids := fmt.Sprint(s.GetPids())
	if s.GetPidsLimit() > 0 {
		pids += fmt.Sprintf(" / %d", s.GetPidsLimit())
	}
	return cells(
		cmp.Or(s.GetSandboxName(), s.GetSandboxId()), cmp.Or(s.GetService(), "primary"), fmt.Sprintf("%.1f %%", s.GetCpuPercent()),
		memoryCount(s.GetMemoryBytes())+" / "+memoryCount(s.GetMemoryLimitBytes()), pair(s.GetNetReceivedBytes(), s.GetNetSentBytes()),
		pair(s.GetBlockReadBytes(), s.GetBlockWrittenBytes()), pids,
	)
}

// topEvery is the time between two lists of processes.
const topEvery = time.Second

type topOptions struct {
	noStream bool
	output   output
	// before are the processes of the list before, by their pids; at is when it was made.
	before map[uint32]*agboxv1.Process
	at     time.Time
}

// usedSince returns the processor time that a process has used since the list before, or
// since its start if it is new, and how long that is.
func (o *topOptions) usedSince(p *agboxv1.Process, at time.Time) (used, since time.Duration) {
	used, since = p.GetCpuTime().AsDuration(), at.Sub(p.GetStartedAt().AsTime())
	before := o.before[p.GetPid()]
	// The start is computed from two clocks and differs a little from list to list.
	if before == nil || p.GetStartedAt().AsTime().Sub(before.GetStartedAt().AsTime()).Abs() > topEvery/2 {
		return used, since
	}
	return used - before.GetCpuTime().AsDuration(), at.Sub(o.at)
}

func (a *app) topCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top SANDBOX [flags]",
		Short: "Show the processes in a sandbox",
		Long: `Show the processes in the primary container of a sandbox, the busiest first. On a
terminal they are shown anew every second until Ctrl-C, otherwise once. CPU is in percent
of one processor: in the last second, and in the first list since the process started.
EXEC is the command that a process belongs to; see "agbox ps". PIDs are those inside.`,
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.runs(o.run),
	}
	cmd.Flags().BoolVar(&o.noStream, "no-stream", false, "show the processes once and exit")
	addTable(cmd, &o.output)
	addTemplate(cmd, &o.output)
	return cmd
}

func (o *topOptions) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	sandbox, err := a.sandbox(ctx, c, args[0], reads)
	if err != nil {
		return err
	}
	size := a.outputSize()
	once := o.noStream || size == nil || o.output.raw()
	for {
		list, err := c.Processes(ctx, sandbox)
		if err != nil {
			return err
		}
		if o.output.raw() {
			return printItems(a, o.output, list.GetProcesses())
		}
		text := view.Render(topColumns, o.rows(list), a.tableOptions(o.output))
		if !once {
			if size = a.outputSize(); size != nil {
				text = firstLines(text, int(size.GetRows())-1)
			}
			text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		}
		if _, err := io.WriteString(a.stdout, text); err != nil {
			return err
		}
		if once {
			if list.GetTruncated() {
				a.say("There are more processes.")
			}
			return nil
		}
		select {
		case <-time.After(topEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// firstLines cuts a text after n lines, at least one.
func firstLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[:min(max(n, 1), len(lines))], "")
}

var topColumns = []view.Column{
	{Title: "PID", Right: true}, {Title: "USER", Min: 4, Omit: 2}, {Title: "EXEC", Min: 6, Omit: 3}, {Title: "S", Omit: 4},
	{Title: "CPU", Right: true}, {Title: "MEMORY", Right: true}, {Title: "TIME", Right: true, Omit: 1},
	{Title: "PARENT", Right: true, Wide: true}, {Title: "COMMAND", Min: 12},
}

// rows are the rows of a list, the busiest process first.
func (o *topOptions) rows(list *agboxv1.ListProcessesResponse) [][]view.Cell {
	type row struct {
		p       *agboxv1.Process
		percent float64
	}
	at, now := list.GetAt().AsTime(), make(map[uint32]*agboxv1.Process)
	var all []row
	for _, p := range list.GetProcesses() {
		used, since := o.usedSince(p, at)
		all = append(all, row{p, 100 * max(0, used.Seconds()) / max(since.Seconds(), 0.01)})
		now[p.GetPid()] = p
	}
	o.before, o.at = now, at
	slices.SortStableFunc(all, func(x, y row) int { return cmp.Compare(y.percent, x.percent) })
	var rows [][]view.Cell
	for _, r := range all {
		rows = append(rows, cells(
			r.p.GetPid(), r.p.GetUser(), orDash(cmp.Or(r.p.GetExecName(), r.p.GetExecId())), r.p.GetState(),
			fmt.Sprintf("%.1f %%", r.percent), memoryCount(r.p.GetMemoryBytes()), shortTime(r.p.GetCpuTime().AsDuration()),
			r.p.GetParentPid(), r.p.GetCommand(),
		))
	}
	return rows
}

// shortTime shows processor time in minutes, seconds and hundredths, as top(1) does.
func shortTime(d time.Duration) string {
	return fmt.Sprintf("%d:%05.2f", int(d.Minutes()), (d % time.Minute).Seconds())
}
