package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/workspace/covers"
)

func (a *app) syncCommand() *cobra.Command {
	var watch bool
	var found executables
	cmd := &cobra.Command{
		Use:   "sync [SANDBOX] [flags]",
		Short: "Keep a folder and the copy of it in a sandbox in step",
		Long: `Bring what a sandbox, or that of this folder, changed in its workspace to the folder that
was copied in, and what the folder changed to the sandbox. With --watch it goes on until Ctrl-C.

One line for each file says what happened to it: "<-" came from the sandbox, "->" went to
the sandbox; A is added, M modified, D removed. A line with "!!" is a conflict: both sides
have changed the file. Both keep their versions, and the exit code is 1. "agbox apply"
merges the lines of such files.

What this machine executes, see "agbox help apply", is asked about. With --watch, without a
terminal or after a no, such a line says that the sandbox keeps it. --yes-executable brings
all of it, and "agbox apply" what its paths name.

New files that a .gitignore names are left out, but not those that git tracks in the
sandbox, and so is the inside of .git. In a copy that was made with --tracked, so are new
files of this folder that git does not track. Empty folders, devices and FIFOs are left
out too. Nothing is written outside of the folder or through a link, and no file gets
setuid or setgid.`,
		Example: `  agbox sync demo
  agbox sync demo --watch`,
		Args:              arguments(0, 1, "one SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			args, err := a.orHere(ctx, c, args, changes)
			if err != nil {
				return err
			}
			return (&syncView{app: a, sandbox: args[0], executables: found}).run(ctx, c, watch)
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on until Ctrl-C")
	found.addFlag(cmd)
	return cmd
}

// syncView prints what "agbox sync" does.
type syncView struct {
	*app
	executables
	sandbox, folder     string
	toSandbox, toFolder int
}

func (v *syncView) run(ctx context.Context, c *client.Client, watch bool) error {
	id, err := v.app.sandbox(ctx, c, v.sandbox, changes)
	if err != nil {
		return err
	}
	agree := func(ctx context.Context, folder string, found []client.Executable) (bool, error) {
		if watch {
			return v.yes, nil // the line of each file says so
		}
		return v.executables.ask(ctx, v.app, folder, found)
	}
	v.goesOn.is("Nothing goes on. Each file of the folder and of the sandbox is as before or as after; `agbox sync %s` goes on from there.", printable(v.sandbox))
	conflicts, err := c.Sync(ctx, id, client.SyncOptions{
		Watch: watch,
		Began: func(folder, target string) {
			v.folder = folder
			if watch {
				v.say("Keeping %s and %s of sandbox %s in step. Ctrl-C ends it.", printable(folder), printable(target), v.sandbox)
			}
		},
		Told:    v.tell,
		Agree:   agree,
		Trouble: func(why string) { v.say("%s", printable(why)) },
	})
	ended := watch && errors.Is(err, context.Canceled) && signalled(ctx) != nil
	if v.folder == "" || err != nil && !ended {
		return err
	}
	v.sum(conflicts)
	if conflicts > 0 {
		return exitStatus(codeFailure)
	}
	return nil
}

// tell prints one line.
func (v *syncView) tell(one client.SyncedFile) {
	arrow, letter := "<-", "M"
	switch {
	case one.Before == nil:
		letter = "A"
	case one.After == nil:
		letter = "D"
	}
	line := printable(one.Path)
	switch {
	case one.Conflict != "":
		arrow, letter, line = "!!", "U", line+"  (conflict: "+printable(one.Conflict)+")"
	case one.ToSandbox:
		v.toSandbox++
		arrow = "->"
	default:
		v.toFolder++
		line += v.warning(one)
	}
	_, _ = fmt.Fprintf(v.stdout, "%s %s %s\n", arrow, letter, line) // the changes are made anyway
}

// warning says what is special about a file that came from the sandbox.
func (v *syncView) warning(one client.SyncedFile) string {
	if one.After == nil {
		return ""
	}
	if to := leadsOut(one.Path, one.Target); to != "" {
		return "  (a link that leads out of the folder: " + printable(to) + ")"
	}
	if _, ok := covers.Find(filepath.Join(v.folder, one.Path)); ok {
		return "  (look at it: this machine executes what it says, or agbox reads it next time)"
	}
	return ""
}

// sum prints what was done.
func (v *syncView) sum(conflicts int) {
	if v.toSandbox+v.toFolder+conflicts == 0 {
		v.say("Nothing was changed: %s and sandbox %s are in step.", printable(v.folder), v.sandbox)
		return
	}
	v.say("%s to the sandbox, %s to the folder, %s.", plural(v.toSandbox, "change", "changes"), plural(v.toFolder, "change", "changes"), plural(conflicts, "conflict", "conflicts"))
	if conflicts > 0 {
		v.say("`agbox apply %s` merges the files in conflict into the folder.", v.sandbox)
	}
}
