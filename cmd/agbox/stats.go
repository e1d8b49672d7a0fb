package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type statsOptions struct {
	noStream bool
	format   format
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
	addFormat(cmd, &o.format)
	return cmd
}

func (o *statsOptions) run(ctx context.Context, a *app, c *client.Client, refs []string) error {
	// Overwrite the last table only on a terminal.
	over := a.width() > 0 && !o.noStream
	for round, err := range c.Stats(ctx, refs, o.noStream) {
		if err != nil {
			return err
		}
		if o.format == formatJSON {
			if err := printJSONLine(a.stdout, round); err != nil {
				return err
			}
			continue
		}
		var table bytes.Buffer
		if over {
			table.WriteString("\x1b[H\x1b[2J")
		}
		rows := make([][]string, 0, len(round.GetContainers()))
		for _, s := range round.GetContainers() {
			rows = append(rows, statsRow(s))
		}
		head := []string{"SANDBOX", "CONTAINER", "CPU", "MEMORY / LIMIT", "NET IN / OUT", "BLOCK READ / WRITTEN", "PIDS"}
		if err := printTable(&table, head, rows); err != nil {
			return err
		}
		if _, err := a.stdout.Write(table.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func statsRow(s *agboxv1.ContainerStats) []string {
	name := s.GetSandboxName()
	if name == "" {
		name = s.GetSandboxId()
	}
	pair := func(a, b uint64) string { return byteCount(int64(a)) + " / " + byteCount(int64(b)) }
	pids := fmt.Sprint(s.GetPids())
	if s.GetPidsLimit() > 0 {
		pids += fmt.Sprintf(" / %d", s.GetPidsLimit())
	}
	return []string{
		printable(name), printable(containerWord(s.GetService())), fmt.Sprintf("%.1f %%", s.GetCpuPercent()),
		memoryCount(s.GetMemoryBytes()) + " / " + memoryCount(s.GetMemoryLimitBytes()), pair(s.GetNetReceivedBytes(), s.GetNetSentBytes()),
		pair(s.GetBlockReadBytes(), s.GetBlockWrittenBytes()), pids,
	}
}
