package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

type cpOptions struct {
	client.CopyOptions
	executables
	quiet bool
}

func (a *app) cpCommand() *cobra.Command {
	var o cpOptions
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC... DST",
		Short: "Copy files and directories into, out of and between sandboxes",
		Long: `Copy files and directories, with mode, owner, times, symbolic and hard links.
SANDBOX:PATH is a path in a sandbox, from its root; anything else is a local path. A
local name with a colon needs a "./" before it.

If DST is a directory, each SRC is copied into it; if SRC ends in "/.", only its
content. Otherwise DST is the name of the copy, and its parent directory must exist.
"-" as SRC unpacks a tar archive from standard input in the directory DST; "-" as
DST writes SRC to standard output as a tar archive.

The sandbox needs neither a shell nor tar. Nothing is ever written outside DST: a
name or link that leads out of it makes the copy fail. Files copied out lose setuid
and setgid. Devices, FIFOs and locks of git such as .git/index.lock are skipped; a copy of
a whole sandbox also skips the content of /proc and /sys. When copying out, only root
keeps the owners; for other users, the copies belong to the user.

New and changed files that programs of this machine execute because they are there, that
agents read as instructions or agbox reads next, and whatever git takes for a repository,
are not copied out at once. Without a terminal they are left out, named, and the exit code
is 1; on one, agbox asks and copies SRC again with them. --yes-executable copies them at
once, and names them. docs/security.md lists them.

If the daemon goes away during a copy, agbox waits for it, starts one that crashed, and
begins the copy again. If that fails, it names each SRC that was not copied. Only "-"
cannot begin again: then the copy fails.`,
		Example: `  agbox cp ./src demo:/work
  agbox cp demo:/work/dist/. ./dist
  agbox cp a.txt b.txt demo:/tmp/
  tar c . | agbox cp - demo:/work
  agbox cp demo:/etc - | tar t`,
		Args:              arguments(2, -1, "SRC and DST, of which one names a sandbox as SANDBOX:PATH"),
		ValidArgsFunction: a.completeCopy,
		RunE:              a.runs(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.Follow, "follow-link", "L", false, "if SRC is a symbolic link, copy its target")
	f.StringVarP(&o.User, "user", "u", "", "`USER[:GROUP]` whose permissions are used in the sandbox (default root)")
	f.BoolVar(&o.NoOwner, "no-owner", false, "do not keep the owners of SRC: the copies belong to the copying user")
	f.BoolVar(&o.Special, "special", false, "copy FIFOs too, and devices into a sandbox")
	o.executables.addFlag(cmd)
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	// Users of docker cp type -a. Owners are always kept.
	f.BoolP("archive", "a", false, "no effect: owners are always kept")
	_ = f.MarkHidden("archive")
	return cmd
}

// copyArg is one argument of cp.
type copyArg struct {
	// sandbox is empty for a path of this machine.
	sandbox, path string
	// pipe is standard input or output.
	pipe bool
}

// resolve replaces what names the sandbox by its id.
func (p *copyArg) resolve(ctx context.Context, a *app, c *client.Client, to purpose) (err error) {
	if p.sandbox != "" {
		p.sandbox, err = a.sandbox(ctx, c, p.sandbox, to)
	}
	return err
}

func parseCopyArg(arg string) copyArg {
	if arg == "-" {
		return copyArg{pipe: true}
	}
	name, path, ok := strings.Cut(arg, ":")
	if !ok || name == "" || strings.Contains(name, "/") || strings.HasPrefix(name, ".") {
		return copyArg{path: arg}
	}
	return copyArg{sandbox: name, path: "/" + strings.TrimLeft(path, "/")}
}

func (o *cpOptions) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	a.goesOn.is("Nothing goes on. What was copied until now stays; the same `agbox cp` copies all again.")
	sources, dst := args[:len(args)-1], parseCopyArg(args[len(args)-1])
	if err := o.check(ctx, a, c, sources, &dst); err != nil {
		return err
	}
	if dst.pipe {
		src := parseCopyArg(sources[0])
		if err := src.resolve(ctx, a, c, reads); err != nil {
			return err
		}
		return o.toPipe(ctx, a, c, src)
	}
	bar := newCopyBar(a, o.quiet)
	defer bar.clear()
	o.Progress = bar.add
	var total client.Copied
	err := a.eachCopy(ctx, sources, func(arg string) error {
		bar.begin(arg)
		src := parseCopyArg(arg)
		if err := src.resolve(ctx, a, c, reads); err != nil {
			return err
		}
		done, err := o.one(ctx, a, c, src, dst)
		bar.clear()
		if err == nil && len(done.Left) > 0 {
			done, err = o.again(ctx, a, c, src, dst, done)
		}
		total.Files += done.Files
		total.Bytes += done.Bytes
		total.Skipped += done.Skipped
		if o.yes && len(done.Executable) > 0 {
			a.nameExecutables(done.Executable)
		}
		bar.clear()
		return err
	})
	if total.Skipped > 0 {
		a.say("%s skipped. --special copies FIFOs too, and devices into a sandbox.", plural(int(total.Skipped), "device or FIFO was", "devices or FIFOs were"))
	}
	if err == nil {
		bar.end(total)
	}
	return err
}

// again asks about what a copy has left out, and copies its source again with that. It fails if
// something stays out.
func (o *cpOptions) again(ctx context.Context, a *app, c *client.Client, src, dst copyArg, done client.Copied) (client.Copied, error) {
	agreed := done.Left
	yes, err := o.ask(ctx, a, dst.path, agreed)
	if err != nil {
		return done, err
	}
	if yes {
		with := *o
		with.Executable = func(one client.Executable) bool {
			return slices.ContainsFunc(agreed, func(e client.Executable) bool {
				return e.Path == one.Path || e.Repository && strings.HasPrefix(one.Path, e.Path+"/")
			})
		}
		if done, err = with.one(ctx, a, c, src, dst); err != nil || len(done.Left) == 0 {
			return done, err
		}
		a.showExecutables(dst.path, done.Left)
	}
	return done, fmt.Errorf("%s left out. --yes-executable copies them", wereExecutables(done.Left))
}

// eachCopy is each for the sources of a copy. Once the daemon is gone for good, it says of each
// source that it was not copied, and tries no further one.
func (a *app) eachCopy(ctx context.Context, sources []string, copyOne func(arg string) error) error {
	var gone error
	return a.each(ctx, sources, func(arg string) error {
		if gone != nil {
			return &notCopied{printable(arg) + " was not copied.", gone}
		}
		err := copyOne(arg)
		if exitCode(err) != codeNoDaemon {
			return err
		}
		gone = err
		return &notCopied{fmt.Sprintf("%s was not copied, or only in part. %v", printable(arg), err), err}
	})
}

// notCopied is the failure of a copy for which the daemon went away.
type notCopied struct {
	message string
	cause   error
}

func (e *notCopied) Error() string { return e.message }
func (e *notCopied) Unwrap() error { return e.cause }

// check refuses invalid combinations of arguments.
func (o *cpOptions) check(ctx context.Context, a *app, c *client.Client, sources []string, dst *copyArg) error {
	for _, arg := range sources {
		src := parseCopyArg(arg)
		switch {
		case arg == "":
			return usagef("SRC is empty.")
		case src.sandbox == "" && dst.sandbox == "":
			return usagef("Neither %s nor the destination is in a sandbox: write SANDBOX:PATH.", arg)
		case (src.pipe || dst.pipe) && len(sources) > 1:
			return usagef("With \"-\", give only one SRC.")
		}
	}
	if dst.path == "" && !dst.pipe {
		return usagef("DST is empty.")
	}
	if dst.pipe && a.stdoutWidth() > 0 {
		return usagef("Standard output is a terminal. Redirect the archive to a file or to tar.")
	}
	isDir, err := false, dst.resolve(ctx, a, c, changes)
	if err != nil || len(sources) == 1 {
		return err
	}
	if dst.sandbox != "" {
		isDir, err = c.IsDirectory(ctx, dst.sandbox, dst.path, o.FileOptions)
	} else if st, statErr := os.Stat(dst.path); statErr == nil {
		isDir = st.IsDir()
	}
	if err == nil && !isDir {
		return usagef("Several files can be copied only into an existing directory, and %s is not one.", dst.path)
	}
	return err
}

// one copies one source.
func (o *cpOptions) one(ctx context.Context, a *app, c *client.Client, src, dst copyArg) (client.Copied, error) {
	switch {
	case src.pipe:
		return o.fromPipe(ctx, a, c, dst)
	case src.sandbox == "":
		return c.CopyTo(ctx, src.path, dst.sandbox, dst.path, o.CopyOptions)
	case dst.sandbox == "":
		options := o.CopyOptions
		if options.Executable == nil && !o.yes {
			options.Executable = func(client.Executable) bool { return false }
		}
		return c.CopyFrom(ctx, src.sandbox, src.path, dst.path, options)
	}
	return c.CopyBetween(ctx, src.sandbox, src.path, dst.sandbox, dst.path, o.CopyOptions)
}

// toPipe writes an archive to standard output.
func (o *cpOptions) toPipe(ctx context.Context, a *app, c *client.Client, src copyArg) error {
	path, name := src.path, ""
	if strings.HasSuffix(path, "/.") {
		path, name = strings.TrimSuffix(path, "."), "."
	}
	return c.ReadArchive(ctx, src.sandbox, path, name, a.stdout, o.CopyOptions)
}

// fromPipe unpacks standard input.
func (o *cpOptions) fromPipe(ctx context.Context, a *app, c *client.Client, dst copyArg) (client.Copied, error) {
	if a.terminal() != nil {
		return client.Copied{}, usagef("Standard input is a terminal. Pipe a tar archive into it, for example `tar c . | agbox cp - SANDBOX:PATH`.")
	}
	r, w := io.Pipe()
	stop, err := readInput(a.stdin, func(p []byte, err error) bool {
		switch {
		case errors.Is(err, io.EOF):
			_ = w.Close()
			return false
		case err != nil:
			_ = w.CloseWithError(fmt.Errorf("standard input cannot be read: %w", err))
			return false
		}
		n, err := w.Write(p)
		o.Progress(0, int64(n), false)
		return err == nil
	})
	if err != nil {
		return client.Copied{}, err
	}
	defer stop()
	defer func() { _ = r.CloseWithError(errors.New("the copy has ended")) }() // before stop: it waits for the writer
	defer context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })()
	return c.WriteArchive(ctx, dst.sandbox, dst.path, "", r, o.CopyOptions)
}

// completeCopy completes names of sandboxes, and local files.
func (a *app) completeCopy(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.ContainsAny(prefix, ":/.") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	list, _ := a.completeSandboxes(-1)(cmd, nil, prefix)
	for i, entry := range list {
		name, text, _ := strings.Cut(entry, "\t")
		list[i] = name + ":\t" + text
	}
	// No space after the colon: a path follows. If no sandbox matches, offer local files.
	if len(list) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return list, cobra.ShellCompDirectiveNoSpace
}

// paintEvery is the shortest time between two updates of a progress line.
const paintEvery = 100 * time.Millisecond

// copyBar shows the progress of a copy on a terminal. Without one it prints nothing.
type copyBar struct {
	shownLine
	width   int
	source  string
	files   int64
	bytes   int64
	began   time.Time
	painted time.Time
}

func newCopyBar(a *app, quiet bool) *copyBar {
	b := &copyBar{shownLine: shownLine{app: a}, began: a.now()}
	if !quiet {
		b.width = a.width()
	}
	return b
}

// begin sets the source that is copied now.
func (b *copyBar) begin(source string) { b.source = source }

// add adds to the counts. Only one goroutine at a time may call it.
func (b *copyBar) add(files, bytes int64, restarted bool) {
	if restarted {
		b.files, b.bytes = 0, 0
	}
	b.files += files
	b.bytes += bytes
	if b.width <= 0 {
		return
	}
	now := b.app.now()
	if b.shown && now.Sub(b.painted) < paintEvery || now.Sub(b.began) < paintEvery {
		return
	}
	b.painted = now
	line := fmt.Sprintf("%s  %s", byteCount(b.bytes), rate(b.bytes, now.Sub(b.began)))
	if b.files > 0 {
		line = fmt.Sprintf("%s  %s", plural(int(b.files), "file", "files"), line)
	}
	b.show(line+"  "+printable(b.source), b.width)
}

// end prints what was copied, on a terminal only.
func (b *copyBar) end(done client.Copied) {
	if b.width > 0 {
		took := b.app.now().Sub(b.began)
		b.app.say("Copied %s, %s, in %.1f s (%s).", plural(int(done.Files), "file", "files"), byteCount(done.Bytes), took.Seconds(), rate(done.Bytes, took))
	}
}

func rate(bytes int64, took time.Duration) string {
	if took <= 0 {
		return "-"
	}
	return byteCount(int64(float64(bytes)/took.Seconds())) + "/s"
}
