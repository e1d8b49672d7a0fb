package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const doctorLong = `Compare what agbox knows with what the container engine and the disk show, and
say of each thing what the daemon does about it, and why:

  leave    nothing: all is well, or a person has to decide (marked with "!")
  repair   bring the sandbox and its container together again
  remove   remove what belongs to no sandbox
  adopt    take up again what a lost database knew

Without --fix nothing is changed. Containers of other installs are never touched.
Where the database is lost or damaged and the daemon cannot start, agbox doctor
looks at the install without it; --fix then adopts the sandboxes of a lost
database. A damaged one is never changed.

Exit codes: 0 all is well, or --fix has done all there was to do; 1 something is
left to be done, by --fix or by a person; others as "agbox help exit-codes" says.`

type doctorOptions struct {
	fix    bool
	format format
}

func (a *app) doctorCommand() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:               "doctor [flags]",
		Short:             "Find what is out of order, and mend it with --fix",
		Long:              doctorLong,
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			return o.run(ctx, a, c)
		}),
	}
	cmd.Flags().BoolVar(&o.fix, "fix", false, "do what is found to be done")
	addFormat(cmd, &o.format)
	return cmd
}

func (o *doctorOptions) run(ctx context.Context, a *app, c *client.Client) error {
	out, err := c.Doctor(ctx, o.fix)
	if errors.Is(err, client.ErrDaemonUnreachable) && a.socket == "" {
		out, err = o.offline(ctx, err)
	}
	if err != nil {
		return err
	}
	if o.format == formatJSON {
		err = printDoctorJSON(a, out)
	} else {
		err = printDoctor(a, out, o.fix)
	}
	if err == nil && !allWell(out) {
		return exitStatus(codeFailure)
	}
	return err
}

// offline looks without a daemon. What it finds explains why there is none; if
// it finds nothing wrong, the daemon's own words are all there is.
func (o *doctorOptions) offline(ctx context.Context, unreachable error) (*agboxv1.DoctorResponse, error) {
	out, err := client.DoctorOffline(ctx, client.DaemonConfig{}, o.fix)
	switch {
	case err != nil:
		return nil, err
	case allWell(out) && len(doneOf(out)) == 0:
		return nil, unreachable
	}
	return out, nil
}

// toDo tells whether a finding is left for --fix or for a person.
func toDo(f *agboxv1.DoctorFinding) bool {
	return f.GetNeedsPerson() || f.GetError() != "" || f.GetAction() != agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE && !f.GetDone()
}

func allWell(out *agboxv1.DoctorResponse) bool {
	for _, f := range out.GetFindings() {
		if toDo(f) {
			return false
		}
	}
	return true
}

func doneOf(out *agboxv1.DoctorResponse) []*agboxv1.DoctorFinding {
	var done []*agboxv1.DoctorFinding
	for _, f := range out.GetFindings() {
		if f.GetDone() {
			done = append(done, f)
		}
	}
	return done
}

func printDoctorJSON(a *app, out *agboxv1.DoctorResponse) error {
	value, err := jsonValue(out)
	if err != nil {
		return err
	}
	return printJSON(a.stdout, value)
}

func printDoctor(a *app, out *agboxv1.DoctorResponse, fix bool) error {
	rows := make([][]string, len(out.GetFindings()))
	for i, f := range out.GetFindings() {
		rows[i] = doctorRow(f)
	}
	if err := printTable(a.stdout, []string{"ACTION", "KIND", "NAME", "SANDBOX", "WHY"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "\n%s\n", doctorClosing(out, fix))
	return err
}

func doctorRow(f *agboxv1.DoctorFinding) []string {
	action := enumWord(f.GetAction().String(), "DOCTOR_ACTION_")
	why := f.GetWhy()
	switch {
	case f.GetError() != "":
		action += " failed"
		why += " But: " + strings.TrimSuffix(f.GetError(), ".") + "."
	case f.GetDone():
		action += " done"
	case f.GetNeedsPerson():
		action += " !"
	}
	name := f.GetName()
	if name == "" {
		name = f.GetId()
	}
	return []string{action, enumWord(f.GetKind().String(), "DOCTOR_KIND_"), orDash(name), orDash(f.GetSandboxId()), printable(why)}
}

// enumWord is a value of an enum as people read it.
func enumWord(value, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(value, prefix)), "_", " ")
}

// doctorClosing sums the findings up and says what to do.
func doctorClosing(out *agboxv1.DoctorResponse, fix bool) string {
	var fixable, person, failed int
	for _, f := range out.GetFindings() {
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
	if n := len(doneOf(out)); n > 0 {
		said = append(said, fmt.Sprintf("%s.", plural(n, "thing was put in order", "things were put in order")))
	}
	if failed > 0 {
		said = append(said, fmt.Sprintf("%s; the table says why.", plural(failed, "thing could not be done", "things could not be done")))
	}
	if fixable > 0 {
		said = append(said, fmt.Sprintf("%s: \"agbox doctor --fix\" does it.", plural(fixable, "thing is to be done", "things are to be done")))
	}
	if person > 0 {
		said = append(said, fmt.Sprintf("%s, marked with \"!\".", plural(person, "thing needs you", "things need you")))
	}
	if len(said) == 0 {
		said = append(said, "All is well.")
	}
	if n := out.GetOtherInstallContainers(); n > 0 {
		said = append(said, fmt.Sprintf("%s, left alone.", plural(int(n), "container of other installs", "containers of other installs")))
	}
	if out.GetOffline() {
		said = append(said, offlineSentence(out, fix))
	}
	return strings.Join(said, " ")
}

func offlineSentence(out *agboxv1.DoctorResponse, fix bool) string {
	if fix && allWell(out) {
		return "No daemon runs; the next command starts it."
	}
	return "No daemon runs, and it cannot start before this is mended."
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
