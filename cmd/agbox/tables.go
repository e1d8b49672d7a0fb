package main

import (
	"encoding/json"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/cmd/agbox/view"
)

// formatWide is the value of -o for a table with all columns, of which none is cut.
const formatWide format = "wide"

// output is how a command shows a table: the values of -o and --no-trunc.
type output struct {
	format  format
	noTrunc bool
	// template is the value of --format; nil without it.
	template *view.Template
}

// addTable adds -o and --no-trunc to a command that shows a table.
func addTable(cmd *cobra.Command, o *output) {
	o.format = formatText
	f := cmd.Flags()
	f.VarP(&formatFlag{format: &o.format, wide: true}, "output", "o", "text, wide (all columns, whole), json or yaml")
	f.BoolVar(&o.noTrunc, "no-trunc", false, "do not shorten the columns to fit the terminal")
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// addTemplate adds --format to a command.
func addTemplate(cmd *cobra.Command, o *output) {
	cmd.Flags().Var(templateFlag{o}, "format", "print each item as this Go template says, for example '{{.name}}: {{.state}}', or 'table {{.name}}\\t{{.state}}'; the fields are those of -o json")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"json", "table"}, cobra.ShellCompDirectiveNoFileComp))
}

// templateFlag is the value of --format.
type templateFlag struct{ *output }

func (templateFlag) String() string { return "" }

// Type names the value in the help.
func (templateFlag) Type() string { return "TEMPLATE" }

// Set takes the value from the command line. "table" alone is the table without --format.
func (f templateFlag) Set(value string) error {
	if value == "table" {
		f.template = nil
		return nil
	}
	var err error
	f.template, err = view.ParseTemplate(value)
	return err
}

// raw reports whether a command shows its items as JSON or by a template, not as a table.
func (o output) raw() bool { return o.template != nil || o.format == formatJSON }

// printItems shows messages as JSON or by a template.
func printItems[M proto.Message](a *app, o output, list []M) error {
	if o.template == nil {
		return printJSONList(a.stdout, list)
	}
	values := make([]json.RawMessage, len(list))
	for i, m := range list {
		var err error
		if values[i], err = view.JSON(m); err != nil {
			return err
		}
	}
	if err := o.template.Print(a.stdout, values, a.tableOptions(o)); err != nil {
		return usagef("--format: %s.", err)
	}
	return nil
}

// printTable writes a table to stdout. On a terminal it fits it into the width.
func (a *app) printTable(o output, columns []view.Column, rows [][]view.Cell) error {
	_, err := io.WriteString(a.stdout, view.Render(columns, rows, a.tableOptions(o)))
	return err
}

// tableOptions says how the terminal on stdout shows a table.
func (a *app) tableOptions(o output) view.Options {
	options := view.Options{Wide: o.format == formatWide}
	if size := a.outputSize(); size != nil {
		options.Color = a.colored()
		if !o.noTrunc && !options.Wide {
			options.Width = int(size.GetColumns())
		}
	}
	return options
}

// colored reports whether the user wants colours on terminals: see https://no-color.org.
func (a *app) colored() bool {
	none, _ := a.lookupEnv("NO_COLOR")
	kind, _ := a.lookupEnv("TERM")
	return none == "" && kind != "dumb"
}

// cells are the cells of a row without a style.
func cells(texts ...string) []view.Cell {
	row := make([]view.Cell, len(texts))
	for i, text := range texts {
		row[i] = view.Text(text)
	}
	return row
}

// styles are the looks of words for states, in lower case.
var styles = map[string]view.Style{
	"ready": view.Good, "running": view.Good, "finished": view.Plain, "completed": view.Good, "idle": view.Good, "granted": view.Good,
	"pending": view.Busy, "starting": view.Busy, "stopping": view.Busy, "deleting": view.Busy, "waiting": view.Busy,
	"paused": view.Busy, "wait": view.Busy, "orphaned": view.Busy, "draining": view.Busy, "cancelled": view.Busy,
	"failed": view.Bad, "lost": view.Bad, "crashed": view.Bad, "aborted": view.Bad, "die": view.Bad,
	"stopped": view.Faint, "deleted": view.Faint, "exited": view.Faint,
}

// stateCell shows a state, which may be followed by a remark, in its colour.
func stateCell(state string) view.Cell {
	word, remark, remarked := strings.Cut(state, " ")
	cell := view.Cell{Text: state, Short: word, Style: styles[strings.ToLower(word)]}
	if remarked && cell.Style == view.Good { // it recovers, or is degraded
		cell.Short, cell.Style = strings.Trim(remark, "()"), view.Busy
	}
	return cell
}

// sinceCell shows how long ago a time was, which may be missing.
func (a *app) sinceCell(t *timestamppb.Timestamp) view.Cell {
	if t == nil {
		return view.Text("-")
	}
	return a.agoCell(t.AsTime())
}

func (a *app) agoCell(t time.Time) view.Cell {
	long := ago(a.now(), t)
	number, unit, _ := strings.Cut(long, " ")
	if long == "just now" {
		return view.Cell{Text: long, Short: "now"}
	}
	return view.Cell{Text: long, Short: number + unit[:1]}
}
