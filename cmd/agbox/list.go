package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/cmd/agbox/view"
)

// listing is how a command lists items: its flags -o, --no-trunc, --format, -q and --filter.
type listing[T any] struct {
	output
	// id returns what -q prints of an item; nil means that the command has no -q.
	id func(T) string
	// keys are the keys of --filter.
	keys    filterKeys[T]
	quiet   bool
	filters []string
}

// filterKeys are the keys that a command takes in --filter, each with its rule.
type filterKeys[T any] map[string]func(item T, value string) bool

// addFlags adds the flags to a command.
func (l *listing[T]) addFlags(cmd *cobra.Command) {
	addTable(cmd, &l.output)
	addTemplate(cmd, &l.output)
	if l.id != nil {
		cmd.Flags().BoolVarP(&l.quiet, "quiet", "q", false, "print ids only")
	}
	words := slices.Sorted(maps.Keys(l.keys))
	cmd.Flags().StringArrayVar(&l.filters, "filter", nil, "only items with `KEY=VALUE` (repeatable); the keys are "+strings.Join(words, ", "))
	for i := range words {
		words[i] += "="
	}
	_ = cmd.RegisterFlagCompletionFunc("filter", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// filtered returns the items that all keys of --filter match. Of several values for a key
// one must match, of several labels all.
func (l *listing[T]) filtered(items []T) ([]T, error) {
	wanted := make(map[string][]string)
	for _, text := range l.filters {
		key, value, ok := strings.Cut(text, "=")
		if !ok || l.keys[key] == nil {
			return nil, usagef("--filter %s is not valid: write KEY=VALUE. The keys are %s.", printable(text), strings.Join(slices.Sorted(maps.Keys(l.keys)), ", "))
		}
		wanted[key] = append(wanted[key], value)
	}
	return slices.DeleteFunc(items, func(item T) bool {
		for key, values := range wanted {
			matches := func(value string) bool { return l.keys[key](item, value) }
			if key == "label" && slices.ContainsFunc(values, func(v string) bool { return !matches(v) }) ||
				!slices.ContainsFunc(values, matches) {
				return true
			}
		}
		return false
	}), nil
}

// filtersBy reports whether a key is among the values of --filter.
func (l *listing[T]) filtersBy(keys ...string) bool {
	return slices.ContainsFunc(l.filters, func(text string) bool {
		key, _, _ := strings.Cut(text, "=")
		return slices.Contains(keys, key)
	})
}

// tabular reports whether the items are shown as a table.
func (l *listing[T]) tabular() bool { return !l.quiet && !l.raw() }

// print shows the items by the flags.
func (l *listing[T]) print(a *app, items []T, columns []view.Column, rows func([]T) [][]view.Cell) error {
	if !l.quiet {
		return printList(a, l.output, items, columns, rows)
	}
	for _, item := range items {
		fmt.Fprintln(a.stdout, l.id(item))
	}
	return nil
}

// printList shows items by -o and --format: as JSON, by a template, or as a table with these rows.
func printList[T any](a *app, o output, items []T, columns []view.Column, rows func([]T) [][]view.Cell) error {
	if o.raw() {
		return printItems(a, o, items)
	}
	return a.printTable(o, columns, rows(items))
}

// eachRow makes a row of each item.
func eachRow[T any](row func(T) []view.Cell) func([]T) [][]view.Cell {
	return func(items []T) [][]view.Cell { return collect(items, row) }
}

// printItems shows items as JSON or by a template.
func printItems[T any](a *app, o output, items []T) error {
	values := make([]json.RawMessage, len(items))
	for i, item := range items {
		var err error
		if values[i], err = jsonOf(item); err != nil {
			return err
		}
	}
	if o.template == nil {
		return printJSON(a.stdout, values)
	}
	if err := o.template.Print(a.stdout, values, a.tableOptions(o)); err != nil {
		return usagef("--format: %s.", err)
	}
	return nil
}

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
	completeWords(cmd, "output", "text", "wide", "json", "yaml")
}

// addTemplate adds --format to a command.
func addTemplate(cmd *cobra.Command, o *output) {
	cmd.Flags().Var(templateFlag{o}, "format", "print each item as this Go template says, for example '{{.name}}: {{.state}}', or 'table {{.name}}\\t{{.state}}'; the fields are those of -o json")
	completeWords(cmd, "format", "json", "table")
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
