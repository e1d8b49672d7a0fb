package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type eventsOptions struct {
	follow bool
	since  uint64
	// from is the value of --since; after is its time.
	from   string
	after  time.Time
	output output
	// names are the names of sandboxes by their ids.
	names map[string]string
}

func (a *app) eventsCommand() *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use:   "events [SANDBOX] [-f] [flags]",
		Short: "Show what happened to one sandbox or to all",
		Long: `Show the events of one sandbox, or of all sandboxes in the order in which they were
recorded, one per line. The number after the sandbox's name is the sequence number of
the event within that sandbox.

TIME is a duration before now (10m, 2d), a local date or time (2026-05-04,
2026-05-04T15:04), or RFC 3339.`,
		Args:              arguments(0, 1, "one SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			var err error
			if o.after, err = timeFlag("since", o.from, a.now()); err != nil {
				return err
			}
			if o.output.format != formatJSON {
				if o.names, err = sandboxNames(ctx, c); err != nil {
					return err
				}
			}
			if len(args) == 0 {
				return o.all(ctx, a, c)
			}
			return o.one(ctx, a, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "keep showing new events")
	f.StringVar(&o.from, "since", "", "only events at or after `TIME`")
	f.Uint64Var(&o.since, "since-seq", 0, "start after event number `N`; without SANDBOX, N is a position (see -o json)")
	addTable(cmd, &o.output)
	return cmd
}

func (o *eventsOptions) one(ctx context.Context, a *app, c *client.Client, sandbox string) error {
	sandbox, err := a.sandbox(ctx, c, sandbox, reads)
	if err != nil {
		return err
	}
	events := c.PastEvents(ctx, sandbox, o.since)
	if o.follow {
		events = c.Events(ctx, sandbox, o.since)
	}
	for ev, err := range events {
		if err != nil {
			return err
		}
		if err := o.print(a, ev, ev); err != nil {
			return err
		}
	}
	return nil
}

func (o *eventsOptions) all(ctx context.Context, a *app, c *client.Client) error {
	events := c.PastEventsOfAll(ctx, o.since)
	if o.follow {
		events = c.WatchEvents(ctx, client.WatchOptions{After: o.since})
	}
	for m, err := range events {
		if err != nil {
			return err
		}
		if m.GetEvent() == nil {
			continue
		}
		if err := o.print(a, m, m.GetEvent()); err != nil {
			return err
		}
	}
	return nil
}

func (o *eventsOptions) print(a *app, whole proto.Message, ev *agboxv1.SandboxEvent) error {
	if ev.GetOccurredAt().AsTime().Before(o.after) {
		return nil
	}
	if o.output.format == formatJSON {
		return printJSONLine(a.stdout, whole)
	}
	if name := ev.GetSandboxPhase().GetName(); name != "" {
		o.names[ev.GetSandboxId()] = name
	}
	_, err := fmt.Fprintln(a.stdout, o.line(ev, a.tableOptions(o.output)))
	return err
}

// narrowEvents is the width of a terminal, in columns, on which events are shown without
// their date.
const narrowEvents = 100

// line shows an event in one line.
func (o *eventsOptions) line(ev *agboxv1.SandboxEvent, t view.Options) string {
	at := stamp(ev.GetOccurredAt())
	if t.Width > 0 && t.Width < narrowEvents && ev.GetOccurredAt() != nil {
		at = ev.GetOccurredAt().AsTime().Local().Format(time.TimeOnly)
	}
	name := printable(firstOf(o.names[ev.GetSandboxId()], ev.GetSandboxId()))
	if t.Width > 0 {
		name = cut(name, max(12, t.Width/5))
	}
	words := []string{at, name}
	if t.Wide {
		words = append(words, ev.GetSandboxId())
	}
	words = append(words, fmt.Sprint(ev.GetSequence()), ev.GetEventType().String(), eventDetails(ev))
	line := strings.TrimRight(printable(strings.Join(words, "  ")), " ")
	if t.Width > 0 {
		line = cut(line, t.Width)
	}
	return line
}

// eventDetails are the details of an event that its line shows.
func eventDetails(ev *agboxv1.SandboxEvent) string {
	var words []string
	add := func(format, value string) {
		if value != "" {
			words = append(words, fmt.Sprintf(format, printable(value)))
		}
	}
	switch {
	case ev.GetSandboxPhase() != nil:
		d := ev.GetSandboxPhase()
		add("name=%s", d.GetName())
		add("%s", d.GetPhase())
		add("(%s)", d.GetReason())
		add("%s", d.GetErrorCode())
		add("%s", d.GetErrorMessage())
	case ev.GetExec() != nil:
		d := ev.GetExec()
		add("%s", d.GetExecId())
		add("name=%s", d.GetName())
		if h := d.GetHook(); h != nil {
			add("(%s)", hookWord(h))
		}
		if t := ev.GetEventType(); t == agboxv1.EventType_EXEC_FINISHED || t == agboxv1.EventType_EXEC_CANCELLED {
			words = append(words, fmt.Sprintf("exit=%d", d.GetExitCode()))
		}
		add("%s", d.GetErrorCode())
		add("%s", d.GetErrorMessage())
	case ev.GetService() != nil:
		d := ev.GetService()
		add("%s", d.GetName())
		if d.GetStart() > 1 {
			words = append(words, fmt.Sprintf("start=%d", d.GetStart()))
		}
		add("exec=%s", d.GetExecId())
		add("%s", d.GetErrorCode())
		add("%s", d.GetErrorMessage())
	}
	return strings.Join(words, " ")
}

// hookWord names the place of a hook's command in the spec.
func hookWord(h *agboxv1.HookRef) string {
	if h.GetService() == "" {
		return fmt.Sprintf("post_create %d", h.GetIndex()+1)
	}
	return fmt.Sprintf("post_start_on_primary %d of %s", h.GetIndex()+1, h.GetService())
}
