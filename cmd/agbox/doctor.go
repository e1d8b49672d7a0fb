package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const doctorLong = `Compare the records of agbox with the container engine and the disk. For each
finding, show the action that the daemon takes, and why:

  leave    no action: nothing is wrong, or you have to decide (marked with "!")
  repair   make the sandbox's container match its record again
  remove   remove something that belongs to no sandbox
  adopt    take over a sandbox that the database has lost

Without --fix, nothing is changed. Containers of other installs are never touched.
If the daemon cannot start because the database is lost or damaged, agbox doctor
inspects the install without the daemon. With --fix it then adopts the sandboxes of
a lost database, with their commands: those that run continue, and those that ended
keep their logs and exit codes. It never changes a damaged database.

An engine without any container of this install is another one, or has lost its data.
agbox changes nothing in it, and waits for the right one. --adopt-engine accepts it.
Sandboxes that it does not have fail, except those whose processes run on.

Exit codes: 0 nothing is wrong, or --fix has fixed everything; 1 problems remain, for
--fix or for you; others as in "agbox help exit-codes".`

type doctorOptions struct {
	fix    bool
	adopt  bool
	output output
}

func (a *app) doctorCommand() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Find problems of this install; fix them with --fix",
		Long:  doctorLong,
		RunE:  a.runs(o.run),
	}
	cmd.Flags().BoolVar(&o.fix, "fix", false, "take the actions that are shown")
	cmd.Flags().BoolVar(&o.adopt, "adopt-engine", false, "use the engine that answers from now on, although it has no container of this install")
	addTable(cmd, &o.output)
	return cmd
}

func (o *doctorOptions) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	examine := c.Doctor
	if o.adopt {
		examine = c.AdoptEngine
	}
	out, err := examine(ctx, o.fix)
	if errors.Is(err, client.ErrDaemonUnreachable) && a.socket == "" && !o.adopt {
		out, err = o.offline(ctx, err)
	}
	if err != nil {
		return err
	}
	if o.output.format == formatJSON {
		err = printJSON(a.stdout, out)
	} else {
		err = printDoctor(a, out, o)
	}
	if err == nil && !allWell(out) {
		return exitStatus(codeFailure)
	}
	return err
}

// offline inspects the install without a daemon. Its findings explain why the daemon
// cannot start. If it finds no problem, it returns the error of the start.
func (o *doctorOptions) offline(ctx context.Context, unreachable error) (*agboxv1.DoctorResponse, error) {
	out, err := client.DoctorOffline(ctx, client.DaemonConfig{}, o.fix)
	switch {
	case err != nil:
		return nil, err
	case allWell(out) && !slices.ContainsFunc(out.GetFindings(), (*agboxv1.DoctorFinding).GetDone):
		return nil, unreachable
	}
	return out, nil
}

// toDo reports whether a finding is left for --fix or for a person.
func toDo(f *agboxv1.DoctorFinding) bool {
	return f.GetNeedsPerson() || f.GetError() != "" || f.GetAction() != agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE && !f.GetDone()
}

func allWell(out *agboxv1.DoctorResponse) bool {
	return !slices.ContainsFunc(out.GetFindings(), toDo)
}

func printDoctor(a *app, out *agboxv1.DoctorResponse, o *doctorOptions) error {
	if err := a.printTable(o.output, doctorColumns, collect(out.GetFindings(), doctorRow)); err != nil {
		return err
	}
	lines := []string{doctorClosing(out, o.fix)}
	if width := a.tableOptions(o.output).Width; width > 0 {
		lines = view.Wrap(lines[0], width)
	}
	return a.printf("\n%s\n", strings.Join(lines, "\n"))
}

// doctorColumns are the columns of doctorRow.
var doctorColumns = []view.Column{
	{Title: "ACTION"}, {Title: "KIND", Omit: 1}, {Title: "NAME", Min: 12}, {Title: "SANDBOX", Min: 8, Omit: 2}, {Title: "WHY", Min: 24, Wrap: true},
}

func doctorRow(f *agboxv1.DoctorFinding) []view.Cell {
	action := view.Text(enumWord(f.GetAction().String(), "DOCTOR_ACTION_"))
	why := f.GetWhy()
	switch {
	case f.GetError() != "":
		action = view.Cell{Text: action.Text + " failed", Style: view.Bad}
		why += " But: " + strings.TrimSuffix(f.GetError(), ".") + "."
	case f.GetDone():
		action = view.Cell{Text: action.Text + " done", Style: view.Good}
	case f.GetNeedsPerson():
		action = view.Cell{Text: action.Text + " !", Style: view.Bad}
	}
	return cells(action, enumWord(f.GetKind().String(), "DOCTOR_KIND_"), orDash(cmp.Or(f.GetName(), f.GetId())), orDash(f.GetSandboxId()), why)
}

// doctorClosing summarizes the findings and says what to do.
func doctorClosing(out *agboxv1.DoctorResponse, fix bool) string {
	var done, fixable, person, failed int
	for _, f := range out.GetFindings() {
		if f.GetDone() {
			done++
		}
		switch {
		case f.GetError() != "":
			failed++
		case f.GetNeedsPerson():
			person++
		case toDo(f):
			fixable++
		}
	}
	var said []string
	if done > 0 {
		said = append(said, fmt.Sprintf("%s.", plural(done, "problem was fixed", "problems were fixed")))
	}
	if failed > 0 {
		said = append(said, fmt.Sprintf("%s; the table says why.", plural(failed, "action failed", "actions failed")))
	}
	if fixable > 0 {
		said = append(said, fmt.Sprintf("%s: run \"agbox doctor --fix\".", plural(fixable, "problem can be fixed", "problems can be fixed")))
	}
	if person > 0 {
		said = append(said, fmt.Sprintf("%s, marked with \"!\".", plural(person, "problem needs you", "problems need you")))
	}
	if len(said) == 0 {
		said = append(said, "No problems found.")
	}
	if n := out.GetOtherInstallContainers(); n > 0 {
		said = append(said, fmt.Sprintf("%s not touched.", plural(int(n), "container of other installs was", "containers of other installs were")))
	}
	if out.GetOffline() {
		text := "The daemon is not running and cannot start until this is fixed."
		if fix && allWell(out) {
			text = "The daemon is not running; the next command starts it."
		}
		said = append(said, text)
	}
	return strings.Join(said, " ")
}
