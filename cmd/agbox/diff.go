package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/edits"
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
"git apply". Without SANDBOX it is that of this folder. PATH limits it to files and folders,
relative to where you stand in the folder that was copied in, else to its root; so are
names, except in the patch. Without SANDBOX, write -- before PATH. What
"agbox apply" has brought to the folder or to a branch is not shown again, except with
--from-start. A conflict is shown until it is resolved.

New files that a .gitignore in the sandbox names are left out. The inside of .git is
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
			sandbox, paths, err := a.sandboxAndPaths(ctx, c, args, dash)
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
	w, err := c.Work(ctx, id, client.WorkOptions{All: o.all, NamesOnly: o.nameOnly, FromStart: o.fromStart})
	if err != nil {
		return err
	}
	defer w.Close()
	place := edits.PlaceIn(w.Source, here("."))
	changes := edits.Select(w.Changes, place.Paths(paths))
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
		return edits.Patch(ctx, changes, screen)
	})
	if err == nil && o.exitCode && len(changes) > 0 {
		return exitStatus(1)
	}
	return err
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
		width = 80
	}
	type row struct {
		name string
		edits.Stat
		before, after int64
	}
	var rows []row
	var total edits.Stat
	names, most, digits := 0, 1, 3
	for _, c := range changes {
		s, err := c.Stat()
		if err != nil {
			return err
		}
		r := row{name: printable(place.Name(c.Path)), Stat: s}
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
		total.Added, total.Removed = total.Added+s.Added, total.Removed+s.Removed
		names, most = max(names, utf8.RuneCountInString(r.name)), max(most, s.Added+s.Removed)
		digits = max(digits, len(fmt.Sprint(s.Added+s.Removed)))
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
