package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/cmd/agbox/view"
)

// format is the value of -o.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

func (f *format) String() string { return string(*f) }

// Type names the values in the help.
func (f *format) Type() string { return "FORMAT" }

// formatFlag is the value of -o. YAML is the JSON in another notation: what a command prints
// as JSON goes through yamlWriter.
type formatFlag struct {
	*format
	yaml, wide bool
}

// String returns what was given.
func (f *formatFlag) String() string {
	if f.yaml {
		return "yaml"
	}
	if f.format == nil {
		return ""
	}
	return f.format.String()
}

// Set takes the value from the command line.
func (f *formatFlag) Set(value string) error {
	f.yaml = value == "yaml"
	switch v := format(value); {
	case f.yaml:
		*f.format = formatJSON
	case v == formatText, v == formatJSON, v == formatWide && f.wide:
		*f.format = v
	case f.wide:
		return fmt.Errorf("use text, wide, json or yaml")
	default:
		return fmt.Errorf("use text, json or yaml")
	}
	return nil
}

// useYAML makes stdout take JSON and print YAML, if -o yaml was given. -q prints ids, whatever -o
// says.
func (a *app) useYAML(cmd *cobra.Command, _ []string) {
	flag := cmd.Flags().Lookup("output")
	if quiet := cmd.Flags().Lookup("quiet"); flag == nil || quiet != nil && quiet.Value.String() == "true" {
		return
	}
	if f, ok := flag.Value.(*formatFlag); ok && f.yaml && !cmd.Flags().Changed("format") {
		a.stdout = &yamlWriter{w: a.stdout}
	}
}

// addFormat adds -o to a command.
func addFormat(cmd *cobra.Command, f *format) {
	*f = formatText
	cmd.Flags().VarP(&formatFlag{format: f}, "output", "o", "text, json or yaml")
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// printJSON writes one JSON value.
func printJSON(w io.Writer, value any) error {
	enc := newJSONEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// printJSONLine writes one message as one line.
func printJSONLine(w io.Writer, m proto.Message) error {
	value, err := view.JSON(m)
	if err != nil {
		return err
	}
	enc := newJSONEncoder(w)
	return enc.Encode(value)
}

// printJSONList writes one JSON array.
func printJSONList[M proto.Message](w io.Writer, list []M) error {
	values := make([]json.RawMessage, 0, len(list))
	for _, m := range list {
		value, err := view.JSON(m)
		if err != nil {
			return err
		}
		values = append(values, value)
	}
	return printJSON(w, values)
}
