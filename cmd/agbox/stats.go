package main

import (
	"context"
	"fmt"
	"io"
	"strings"

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
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, args)
		}),
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
		rows := make([][]view.Cell, 0, len(round.GetContainers()))
		for _, s := range round.GetContainers() {
			rows = append(rows, statsRow(s))
		}
		text := view.Render(statsColumns, rows, a.tableOptions(o.output))
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
	name := s.GetSandboxName()
	if name == "" {
		name = s.GetSandboxId()
	}
	pair := func(a, b uint64) string { return byteCount(int64(a)) + " / " + byteCount(int64(b)) }
	pids := fmt.Sprint(s.GetPids())
	if s.GetPidsLimit() > 0 {
		pids += fmt.Sprintf(" / %d", s.GetPidsLimit())
	}
	return cells(
		name, containerWord(s.GetService()), fmt.Sprintf("%.1f %%", s.GetCpuPercent()),
		memoryCount(s.GetMemoryBytes())+" / "+memoryCount(s.GetMemoryLimitBytes()), pair(s.GetNetReceivedBytes(), s.GetNetSentBytes()),
		pair(s.GetBlockReadBytes(), s.GetBlockWrittenBytes()), pids,
	)
}
