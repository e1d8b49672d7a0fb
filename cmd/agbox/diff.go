package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/workspace/edits"
)

type diffOptions struct {
	all, fromStart, stat, nameOnly, exitCode, noPager bool
}

func (a *app) diffCommand() *cobra.Command {
	var o diffOptions
	var dash int
	cmd := &cobra.Command{
		Use:   "diff [SANDBOX] [PATH...] [flags]",
		Short: "Show what a sandbox changed in its workspace",
		Long: `Show what a sandbox changed in the workspace that was copied in, as a patch for
"git apply". Without SANDBOX it is that of this folder. PATH limits it to files and folders.
Names, and a PATH that is not absolute, are relative to where you stand in the folder that was
copied in, else to its root; names in the patch always to its root. Without SANDBOX, write --
before PATH. What
"agbox apply" has brought to the folder or to a branch is not shown again, except with
--from-start. A conflict is shown until it is resolved.

New files that a .gitignore in the sandbox names and that its git does not track are left
out. The inside of .git is
never shown or brought back: a commit made in the sandbox comes out as the files that it
changed. Empty folders, devices and FIFOs are left out too.

A stopped sandbox is compared too, and not started. All its files are read for that.

--stat and --name-only need no git. On a terminal, the patch goes through GIT_PAGER,
PAGER or less.`,
		Example: `  agbox diff demo --stat
  agbox diff demo src
  agbox diff -- src
  agbox diff demo | git apply`,
		Args:              dashAt(&dash),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			sandbox, paths, err := a.sandboxAndPaths(ctx, c, args, dash, reads)
			if err != nil {
				return err
			}
			return o.run(ctx, a, c, sandbox, paths)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "also show new files that are ignored")
	f.BoolVar(&o.fromStart, "from-start", false, "show all changes since the folder was copied in")
	f.BoolVar(&o.stat, "stat", false, "show how many lines changed in each file")
	f.BoolVar(&o.nameOnly, "name-only", false, "show only the names of the files")
	f.BoolVar(&o.exitCode, "exit-code", false, "exit with 1 if there are changes")
	f.BoolVar(&o.noPager, "no-pager", false, "do not use a pager")
	return cmd
}

func (o *diffOptions) run(ctx context.Context, a *app, c *client.Client, sandbox string, paths []string) error {
	if o.stat && o.nameOnly {
		return usagef("Use --stat or --name-only, not both.")
	}
	id, err := a.sandbox(ctx, c, sandbox, reads)
	if err != nil {
		return err
	}
	w, err := c.Work(ctx, id, client.WorkOptions{
		Paths: paths, Here: here("."), All: o.all, NamesOnly: o.nameOnly, Lines: o.stat, FromStart: o.fromStart,
	})
	if err != nil {
		return err
	}
	defer w.Close()
	place := edits.PlaceIn(w.Source, here("."))
	changes, large := w.Changes, w.Large
	if o.nameOnly || o.stat {
		changes = append(changes, large...)
		edits.Sort(changes)
	} else {
		for _, change := range changes {
			if change.TooLarge() {
				large = append(large, change)
			}
		}
	}
	var refused []string
	err = a.paged(ctx, o.noPager || len(changes) == 0, func(out io.Writer) error {
		switch {
		case o.nameOnly:
			for _, change := range changes {
				if _, err := fmt.Fprintln(out, printable(place.Name(change.Path))); err != nil {
					return err
				}
			}
			return nil
		case o.stat:
			return writeStat(out, changes, place, a.stdoutWidth(), a.stdoutColours())
		case len(changes) == 0:
			return nil
		}
		screen := out
		if a.stdoutWidth() > 0 {
			screen = &patchScreen{out: out, colours: a.stdoutColours()}
		}
		refused, err = edits.Patch(ctx, changes, screen)
		return err
	})
	for _, name := range refused {
		a.say("%s: not in the patch: git refuses such a name. `agbox apply %s` brings the file.", printable(place.Name(name)), sandbox)
	}
	if !o.nameOnly {
		a.sayLarge(sandbox, w.Target, w.Source, large)
	}
	if err == nil && o.exitCode && len(changes)+len(large) > 0 {
		return exitStatus(1)
	}
	return err
}

// sayLarge names changes that are too large to be shown and brought, and how to go on.
func (a *app) sayLarge(sandbox, target, folder string, large []client.WorkChange) {
	for _, change := range large {
		switch after := change.After; {
		case client.RefusedName(change.Path):
			a.say("%s: left out: some file systems take its name for .git, and git refuses it. `agbox cp` copies it out under another name.", printable(change.Path))
		case after == nil || !after.TooLarge:
			a.say("%s: too large to show: it had %d bytes.", printable(change.Path), change.Before.Size)
		case after.Size <= edits.MaxContent:
			a.say("%s: left out: all changes together have more than %d GiB. Bring the others with `agbox apply %s`, then this one.",
				printable(change.Path), edits.MaxContents>>30, sandbox)
		default:
			a.say("%s: too large: %d bytes, and at most %d are compared. `agbox cp %s %s` brings it from the running sandbox; `agbox apply %s` then finds that the folder has it.",
				printable(change.Path), after.Size, edits.MaxContent, shellWords([]string{sandbox + ":" + target + "/" + change.Path}), shellWords([]string{filepath.Join(folder, change.Path)}), sandbox)
		}
	}
}

// patchScreen shows a patch on a terminal: control characters of files are escaped, so
// they cannot control the terminal, and lines have git's colours.
type patchScreen struct {
	out     io.Writer
	colours bool
	rest    []byte
	// body is true after the first "@@" of a file: then a leading "-" or "+" is a line.
	body bool
}

// Write shows the complete lines of p.
func (s *patchScreen) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		line, rest, whole := strings.Cut(string(s.rest), "\n")
		if !whole {
			return len(p), nil
		}
		s.rest = []byte(rest)
		if _, err := io.WriteString(s.out, s.line(line)+"\n"); err != nil {
			return 0, err
		}
	}
}

func (s *patchScreen) line(line string) string {
	colour := ""
	switch {
	case strings.HasPrefix(line, "diff --git "):
		s.body, colour = false, "1"
	case strings.HasPrefix(line, "@@"):
		s.body, colour = true, "36"
	case !s.body:
		colour = "1"
	case strings.HasPrefix(line, "+"):
		colour = "32"
	case strings.HasPrefix(line, "-"):
		colour = "31"
	}
	if !utf8.ValidString(line) {
		line = strings.ToValidUTF8(line, "\uFFFD")
	}
	line = printableLines(line)
	if !s.colours || colour == "" {
		return line
	}
	return "\x1b[" + colour + "m" + line + "\x1b[0m"
}

// writeStat writes a table as git diff --stat does. width is that of the terminal in
// characters, 0 if there is none.
func writeStat(out io.Writer, changes []client.WorkChange, place edits.Place, width int, colours bool) error {
	if width <= 0 {
		width = usualWidth
	}
	type row struct {
		name string
		edits.Lines
		before, after int64
	}
	var rows []row
	var total edits.Lines
	names, most, digits := 0, 1, 3
	for _, c := range changes {
		r := row{name: printable(place.Name(c.Path)), Lines: c.Lines}
		if c.From != "" {
			r.name = printable(place.Name(c.From)) + " => " + printable(place.Name(c.Path))
		}
		if c.Before != nil {
			r.before = c.Before.Size
		}
		if c.After != nil {
			r.after = c.After.Size
		}
		rows = append(rows, r)
		total.Added, total.Removed = total.Added+c.Lines.Added, total.Removed+c.Lines.Removed
		names, most = max(names, utf8.RuneCountInString(r.name)), max(most, c.Lines.Added+c.Lines.Removed)
		digits = max(digits, len(fmt.Sprint(c.Lines.Added+c.Lines.Removed)))
	}
	names = min(names, max(10, width*2/3))
	bar := max(4, width-names-digits-5)
	for _, r := range rows {
		tail := fmt.Sprintf("%*s %d -> %d bytes", digits, "Bin", r.before, r.after)
		if !r.Binary {
			plus, minus := r.Added, r.Removed
			if most > bar {
				plus, minus = scaled(plus, most, bar), scaled(minus, most, bar)
			}
			tail = fmt.Sprintf("%*d %s%s", digits, r.Added+r.Removed, paint(strings.Repeat("+", plus), "32", colours), paint(strings.Repeat("-", minus), "31", colours))
		}
		name := cut(r.name, names)
		pad := strings.Repeat(" ", names-utf8.RuneCountInString(name))
		if _, err := fmt.Fprintf(out, " %s%s | %s\n", name, pad, strings.TrimRight(tail, " ")); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return nil
	}
	text := " " + plural(len(rows), "file", "files") + " changed"
	if total.Added > 0 {
		text += ", " + plural(total.Added, "insertion(+)", "insertions(+)")
	}
	if total.Removed > 0 {
		text += ", " + plural(total.Removed, "deletion(-)", "deletions(-)")
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

// scaled maps n of at most most to a bar; what is not 0 stays visible.
func scaled(n, most, bar int) int {
	if n == 0 {
		return 0
	}
	return 1 + n*(bar-2)/most
}

func paint(text, colour string, colours bool) string {
	if !colours || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// paged calls write with stdout, or on a terminal with the input of a pager, as git does:
// GIT_PAGER, PAGER or less, none if that is "cat" or empty.
func (a *app) paged(ctx context.Context, never bool, write func(io.Writer) error) error {
	pager := a.pager()
	if never || pager == "" || a.stdoutWidth() == 0 {
		return write(a.stdout)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", pager)
	cmd.Stdout, cmd.Stderr = a.stdout, a.stderr
	cmd.Env = os.Environ()
	if _, set := a.lookupEnv("LESS"); !set {
		cmd.Env = append(cmd.Env, "LESS=FRX")
	}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return write(a.stdout) // no pager
	}
	err = write(in)
	_ = in.Close()
	_ = cmd.Wait() // it has told on the terminal what is wrong
	if errors.Is(err, syscall.EPIPE) {
		return nil // its user has seen enough
	}
	return err
}

func (a *app) pager() string {
	for _, name := range []string{"GIT_PAGER", "PAGER"} {
		if value, set := a.lookupEnv(name); set {
			if value == "cat" {
				return ""
			}
			return value
		}
	}
	if _, err := exec.LookPath("less"); err != nil {
		return ""
	}
	return "less"
}
