package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
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
	return a.println(o.line(ev, a.tableOptions(o.output)))
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
	name := printable(cmp.Or(o.names[ev.GetSandboxId()], ev.GetSandboxId()))
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
	switch {
	case h.GetPrepare():
		return fmt.Sprintf("prepare %d", h.GetIndex()+1)
	case h.GetService() == "":
		return fmt.Sprintf("post_create %d", h.GetIndex()+1)
	}
	return fmt.Sprintf("post_start_on_primary %d of %s", h.GetIndex()+1, h.GetService())
}

// progress shows on stderr how a sandbox starts. On a terminal it overwrites one line.
// Elsewhere it prints a line for each phase that may take long.
type progress struct {
	shownLine
	// logs reads the output of hooks; nil shows none.
	logs  logReader
	phase string
	// services is the last line about services: failing services are restarted often,
	// and the same line is not printed twice.
	services string
}

// phases are the words for the daemon's phases.
var phases = map[string]string{
	"image":     "getting the image",
	"build":     "building the image",
	"network":   "creating the network",
	"container": "creating the container",
	"start":     "starting",
	"copy":      "copying files in",
	"services":  "starting services",
}

// show takes one event of the sandbox.
func (p *progress) show(ev *agboxv1.SandboxEvent) {
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_PREPARING:
		p.preparing(ev.GetSandboxPhase())
	case agboxv1.EventType_SANDBOX_FILES_COPIED:
		if text := ignoredWords(ev.GetSandboxPhase()); text != "" {
			p.clear()
			p.app.say("%s", text)
		}
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED:
		name := printable(ev.GetService().GetName())
		p.put("service "+name, "starting service "+name, false)
	case agboxv1.EventType_EXEC_STARTED:
		if hook := ev.GetExec().GetHook(); hook != nil {
			p.hookStarted(ev.GetExec().GetExecId(), hook)
		}
	case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED:
		if ev.GetExec().GetHook() != nil {
			p.hookEnded(ev.GetExec())
		}
	}
}

func (p *progress) preparing(d *agboxv1.SandboxPhaseDetails) {
	line, ok := phases[d.GetPhase()]
	if !ok {
		line = printable(d.GetPhase())
	}
	if d.GetReason() != "" {
		line += ": " + printable(d.GetReason())
	}
	if d.GetBytesTotal() > 0 {
		line = bar(d.GetBytesDone(), d.GetBytesTotal()) + " " + line
	}
	long := d.GetPhase() == "image" || d.GetPhase() == "copy" || d.GetReason() != ""
	if d.GetPhase() == "services" {
		long = line != p.services
		p.services = line
	}
	p.put(d.GetPhase(), line, long)
}

// shownIgnored is how many ignored files are named.
const shownIgnored = 4

// ignoredWords says which files were copied although a .gitignore names them; "" if none.
func ignoredWords(d *agboxv1.SandboxPhaseDetails) string {
	n := int(d.GetIgnoredFiles())
	if n == 0 {
		return ""
	}
	names := d.GetIgnoredNames()[:min(len(d.GetIgnoredNames()), shownIgnored)]
	return fmt.Sprintf("The copy has %s, %s among them. --tracked copies only what git tracks, --use-gitignore leaves them out.",
		plural(n, "file that a .gitignore names", "files that a .gitignore names"), strings.Join(collect(names, printable), ", "))
}

// put shows a line. long means that the phase may take long.
func (p *progress) put(phase, line string, long bool) {
	if width := p.app.width(); width > 0 {
		p.shownLine.show(line, width)
		return
	}
	if long && phase != p.phase {
		p.app.say("%s", line)
	}
	p.phase = phase
}

// barWidth is the width of a bar in characters.
const barWidth = 20

// bar shows how much of something is done.
func bar(done, total uint64) string {
	full := int(min(done, total) * barWidth / max(total, 1))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "]"
}

// hookLine is the longest line of a hook's output that is shown whole, in bytes.
const hookLine = 4096

// hookTail is how many last lines are shown of a hook that failed and was not followed.
const hookTail = uint64(20)

// logReader reads the output of an exec, as client.FollowLogs does.
type logReader func(exec string, o client.LogOptions) iter.Seq2[client.LogItem, error]

// hookOutput shows the output of a hook, line by line, on stderr. Escape sequences are
// removed and control characters escaped: it is shown between messages of agbox.
type hookOutput struct {
	progress *progress
	// streams are stdout and stderr, each with the line that is not complete yet.
	streams [2]struct {
		ansi ansiFilter
		line []byte
	}
}

// follow shows the output of the exec until it has ended or cannot be read any more. The
// wait for the sandbox reports errors.
func (h *hookOutput) follow(items iter.Seq2[client.LogItem, error]) {
	for item, err := range items {
		if err != nil || item.End != nil {
			break
		}
		s := &h.streams[0]
		if item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR {
			s = &h.streams[1]
		}
		s.line = append(s.line, s.ansi.filter(item.Data)...)
		for {
			i := bytes.IndexByte(s.line, '\n')
			if i < 0 && len(s.line) < hookLine {
				break
			}
			if i < 0 {
				i = hookLine
			}
			h.print(s.line[:i])
			s.line = bytes.TrimPrefix(s.line[i:], []byte("\n"))
		}
	}
	for _, s := range h.streams {
		if len(s.line) > 0 {
			h.print(s.line)
		}
	}
}

// print shows a line as it stands on a terminal at last: without what a carriage return
// has overwritten.
func (h *hookOutput) print(line []byte) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	line = line[bytes.LastIndexByte(line, '\r')+1:]
	h.progress.clear()
	fmt.Fprintf(h.progress.app.stderr, "  | %s\n", printableLines(string(line)))
}

// hookStarted says which hook runs. It follows the output of prepare and post_create, which is over
// before the sandbox is ready. Other hooks may go on after that.
func (p *progress) hookStarted(exec string, hook *agboxv1.HookRef) {
	list := "post_create"
	switch {
	case hook.GetPrepare():
		list = "prepare"
	case hook.GetService() != "":
		list = "post_start_on_primary of service " + printable(hook.GetService())
	}
	id := printable(exec)
	p.put(id, fmt.Sprintf("running command %d of %s: agbox logs -f %s", hook.GetIndex()+1, list, id), true)
	if hook.GetService() == "" && p.logs != nil {
		h := hookOutput{progress: p}
		h.follow(p.logs(exec, client.LogOptions{Follow: true}))
	}
}

// hookEnded shows the end of the output of a hook that failed and was not followed.
func (p *progress) hookEnded(d *agboxv1.ExecEventDetails) {
	if d.GetHook().GetService() == "" || d.GetExitCode() == 0 && d.GetErrorCode() == "" || p.logs == nil {
		return
	}
	p.clear()
	p.app.say("%s failed. The end of its output:", hookWord(d.GetHook()))
	tail := hookTail
	h := hookOutput{progress: p}
	h.follow(p.logs(d.GetExecId(), client.LogOptions{TailLines: &tail}))
}
