package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type logsOptions struct {
	follow  bool
	sandbox string
	service string
	since   string
	until   string
	tail    string
	stdout  bool
	stderr  bool
	print   logsStyle
	format  format
}

func (a *app) logsCommand() *cobra.Command {
	var o logsOptions
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "logs [-f] [EXEC | SANDBOX | --sandbox SANDBOX] [flags]",
		Short: "Show the output of a command, or of all commands of a sandbox",
		Long: `Show the output of a command in the order in which it was written: its stdout on
stdout and its stderr on stderr. The bytes are unchanged and include escape
sequences; --strip-ansi removes those. With -t or --sandbox, a line appears when it
is complete. SANDBOX alone means its newest command, running or ended,
and nothing the newest command of the sandbox of this folder.

With --sandbox, each line begins with the name of its command, or with the first
characters of its id and of the command. With -f it shows the running commands and
those started later, until the sandbox is deleted. Without -f it shows all commands
whose output is kept, one after the other.

TIME is a duration before now (10m, 1h30m, 2d), a local date or time
(2026-05-04, 2026-05-04T15:04), or RFC 3339 (2026-05-04T15:04:05Z).

With --service it shows the output of a service of SANDBOX, or of the sandbox of this
folder. The engine keeps the last 10 MiB of it. Of the other flags, only -f and -n can be used.

The exit code is 3 if the output of the command was removed.

With -o json each piece of output is one line with exec_id, stream (stdout or
stderr), offset (bytes before it in the stream), time, and data. If the bytes are
not UTF-8, data_base64 replaces data. If output was dropped because the disk or the
log was full, dropped_bytes replaces data where it is missing. The last line of a
command has exec_id and end.`,
		Example: `  agbox logs -f -n 20 job
  agbox logs --since 10m --stderr -t job
  agbox logs -f --sandbox demo
  agbox logs -n 50 demo --service db`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.sandbox != "" {
				return arguments(0, 0, "")(cmd, args)
			}
			return arguments(0, 1, "one EXEC or SANDBOX")(cmd, args)
		},
		ValidArgsFunction: a.completeExecsFirst(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if o.sandbox == "" {
				var err error
				if args, err = a.orHere(ctx, c, args, reads); err != nil {
					return err
				}
			}
			if o.service != "" && o.sandbox == "" {
				o.sandbox, args = args[0], nil
			}
			return o.run(ctx, a, c, strings.Join(args, ""), cmd.Flags().Changed("tail"))
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "keep showing new output until the command has ended")
	f.StringVar(&o.sandbox, "sandbox", "", "show all commands of `SANDBOX`")
	f.StringVar(&o.service, "service", "", "show the output of the service `NAME` of the sandbox")
	f.StringVar(&o.since, "since", "", "show output written at or after `TIME`")
	f.StringVar(&o.until, "until", "", "show output written before `TIME`; with -f, end at that time")
	f.StringVarP(&o.tail, "tail", "n", "", "begin with the last `N` lines, or all; with --sandbox, of each command")
	f.BoolVar(&o.stdout, "stdout", false, "show stdout only")
	f.BoolVar(&o.stderr, "stderr", false, "show stderr only")
	o.print.addFlags(f)
	addFormat(cmd, &o.format)
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("sandbox", a.completeSandboxes(-1))
	return cmd
}

// part is the part of the output that the flags select.
func (o *logsOptions) part(now time.Time, tailGiven bool) (client.LogOptions, error) {
	part := client.LogOptions{Follow: o.follow}
	var err error
	if part.Since, err = timeFlag("since", o.since, now); err != nil {
		return part, err
	}
	if part.Until, err = timeFlag("until", o.until, now); err != nil {
		return part, err
	}
	if tailGiven {
		if part.TailLines, err = tailLines(o.tail); err != nil {
			return part, err
		}
	}
	if o.stdout != o.stderr {
		stream := agboxv1.LogStream_LOG_STREAM_STDOUT
		if o.stderr {
			stream = agboxv1.LogStream_LOG_STREAM_STDERR
		}
		part.Streams = []agboxv1.LogStream{stream}
	}
	return part, nil
}

func (o *logsOptions) run(ctx context.Context, a *app, c *client.Client, ref string, tail bool) error {
	part, err := o.part(a.now(), tail)
	if err != nil {
		return err
	}
	if o.sandbox != "" {
		if o.sandbox, err = a.sandbox(ctx, c, o.sandbox, reads); err != nil {
			return err
		}
	}
	if o.service != "" {
		return o.runService(ctx, a, c, part)
	}
	p := a.logPrinter(o.print, o.format)
	if o.sandbox != "" {
		return o.runSandbox(ctx, a, c, part, p)
	}
	// Follow by id: another command may get the name meanwhile.
	e, err := a.namedExec(ctx, c, ref, false, reads)
	if err != nil {
		return err
	}
	var end *agboxv1.LogEnd
	for item, err := range c.FollowLogs(ctx, e.GetExecId(), part) {
		if err != nil {
			return flushed(p, err)
		}
		if err := p.print(e, item); err != nil {
			return err
		}
		end = item.End
	}
	if outputGone(end) {
		return exitStatus(codeNotFound)
	}
	return nil
}

// outputGone reports whether nothing is left of the output of a command, as the notice at its
// end says.
func outputGone(end *agboxv1.LogEnd) bool {
	wrote, at := end.GetExec().GetStdoutBytes()+end.GetExec().GetStderrBytes(), end.GetCursor()
	return end.GetNotice() != "" && wrote > 0 && at.GetStdoutOffset()+at.GetStderrOffset() == 0
}

func (o *logsOptions) runSandbox(ctx context.Context, a *app, c *client.Client, part client.LogOptions, p *logPrinter) error {
	p.prefix, p.colour = true, a.stdoutColours()
	all := client.SandboxLogOptions{
		Follow: part.Follow, Since: part.Since, Until: part.Until, TailLines: part.TailLines, Streams: part.Streams,
	}
	for item, err := range c.FollowSandboxLogs(ctx, o.sandbox, all) {
		if err != nil {
			return flushed(p, err)
		}
		if err := p.print(item.Exec, item.LogItem); err != nil {
			return err
		}
	}
	return nil
}

func (o *logsOptions) runService(ctx context.Context, a *app, c *client.Client, part client.LogOptions) error {
	tailless := part.TailLines != nil && *part.TailLines == 0
	if o.since != "" || o.until != "" || o.stdout || o.stderr || o.print != (logsStyle{}) || o.format != formatText || tailless {
		return usagef("With --service, the only other flags allowed are -f and -n with 1 or more.")
	}
	in := &agboxv1.ServiceLogsRequest{SandboxId: o.sandbox, Service: o.service, Follow: o.follow}
	if part.TailLines != nil {
		in.TailLines = uint32(min(*part.TailLines, math.MaxInt32))
	}
	return c.ServiceLogs(ctx, in, a.stdout, a.stderr)
}

func (a *app) daemonLogsCommand() *cobra.Command {
	var follow bool
	var tail string
	cmd := &cobra.Command{
		Use:   "logs [-f] [flags]",
		Short: "Show the log of a daemon that agbox has started",
		Long: `Show the log of a daemon that agbox has started, also if it no longer runs. The daemon
renames the file at 10 MiB; this shows the newest part. The log of a daemon that systemd
runs is in the journal: journalctl -u agboxd, or journalctl --user -u agboxd.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.began = true
			if err := a.ownSocketOnly(); err != nil {
				return err
			}
			lines, err := tailLines(tail)
			if err != nil {
				return err
			}
			install, err := paths.FromEnv()
			if err != nil {
				return err
			}
			path := install.DaemonLog()
			ctx, done := a.interruptible(cmd.Context())
			defer done()
			var changes *fileFollower
			if follow {
				changes = followFile(path) // before the file is read, so that no change is missed
				defer changes.close()
			}
			err = showFile(ctx, a.stdout, path, lines, changes)
			if errors.Is(err, fs.ErrNotExist) {
				err = &client.Error{Code: codes.NotFound, Message: "There is no " + path + ": agbox has started no daemon here. " +
					"If systemd runs it, see `journalctl -u agboxd`."}
			}
			return cmp.Or(signalled(ctx), err)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep showing what is added")
	cmd.Flags().StringVarP(&tail, "tail", "n", "all", "begin with the last `N` lines, or all")
	return cmd
}

// showFile writes the last lines of a file, all if lines is nil. Unless changes is nil, it goes
// on with what is added, also in a file that takes its place, until ctx ends.
func showFile(ctx context.Context, out io.Writer, path string, lines *uint64, changes *fileFollower) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := seekTail(file, lines); err != nil {
		return err
	}
	for {
		if _, err := io.Copy(out, file); err != nil || changes == nil {
			return err
		}
		if next := successor(path, file); next != nil {
			// The daemon renames a file before it opens the next one: this is the rest.
			_, err := io.Copy(out, file)
			_ = file.Close()
			if file = next; err != nil {
				return err
			}
			continue
		}
		if changes.next(ctx) != nil {
			return nil
		}
	}
}

// successor is the file at path if it is another one than file, else nil.
func successor(path string, file *os.File) *os.File {
	old, err := file.Stat()
	if err != nil {
		return nil
	}
	if now, err := os.Stat(path); err != nil || os.SameFile(old, now) {
		return nil
	}
	next, err := os.Open(path)
	if err != nil {
		return nil
	}
	return next
}

// seekTail moves to the last lines of a file; nil means all.
func seekTail(file *os.File, lines *uint64) error {
	if lines == nil {
		return nil
	}
	at, err := file.Seek(0, io.SeekEnd)
	if err != nil || at == 0 {
		return err
	}
	const block = 64 << 10
	piece := make([]byte, block)
	// breaks is how many line breaks are between the place and the end.
	breaks := *lines
	if _, err := file.ReadAt(piece[:1], at-1); err != nil {
		return err
	}
	if piece[0] == '\n' {
		breaks++
	}
	if breaks == 0 {
		return nil
	}
	for at > 0 {
		from := max(at-block, 0)
		part := piece[:at-from]
		if _, err := file.ReadAt(part, from); err != nil {
			return err
		}
		for i := bytes.LastIndexByte(part, '\n'); i >= 0; i = bytes.LastIndexByte(part[:i], '\n') {
			if breaks--; breaks == 0 {
				_, err := file.Seek(from+int64(i)+1, io.SeekStart)
				return err
			}
		}
		at = from
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

// filePoll is how often a file is looked at that the kernel does not watch.
const filePoll = 250 * time.Millisecond

// fileFollower tells when a file may have changed. The file may be renamed and made again.
type fileFollower struct {
	path   string
	events <-chan fsnotify.Event
	// lost has a value when events were lost.
	lost <-chan error
	// tick has a value whenever the file must be looked at, if the kernel does not watch it.
	tick <-chan time.Time
	// ends is what close does.
	ends []func()
}

// followFile begins to watch a file. If the kernel has no room for that, the file is polled.
// close must be called.
func followFile(path string) *fileFollower {
	f := &fileFollower{path: path}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		f.ends = append(f.ends, func() { _ = watcher.Close() }) // nothing is written
		f.events, f.lost = watcher.Events, watcher.Errors
		err = watcher.Add(filepath.Dir(path))
	}
	if err != nil {
		f.poll()
	}
	return f
}

func (f *fileFollower) poll() {
	ticker := time.NewTicker(filePoll)
	f.tick, f.ends = ticker.C, append(f.ends, ticker.Stop)
}

func (f *fileFollower) close() {
	for _, end := range f.ends {
		end()
	}
}

// next returns when the file may have changed, or with the error of ctx.
func (f *fileFollower) next(ctx context.Context) error {
	for {
		select {
		case e := <-f.events:
			switch {
			case e.Name == f.path && (e.Has(fsnotify.Write) || e.Has(fsnotify.Create)):
				return nil
			case e.Name == filepath.Dir(f.path) && f.tick == nil: // the folder was removed or renamed
				f.poll()
				return nil
			}
		case <-f.lost: //nolint:errcheck // any error means that events were lost
			return nil
		case <-f.tick:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
