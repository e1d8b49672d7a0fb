package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
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

// Set takes the value from the command line.
func (f *format) Set(value string) error {
	switch v := format(value); v {
	case formatText, formatJSON:
		*f = v
		return nil
	}
	return fmt.Errorf("use text or json")
}

// addFormat adds -o to a command.
func addFormat(cmd *cobra.Command, f *format) {
	*f = formatText
	cmd.Flags().VarP(f, "output", "o", "text or json")
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// jsonValue is a message as JSON, with the field names of the .proto files. It has
// unset fields too, so scripts need not check whether a key exists.
func jsonValue(m proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
}

// printJSON writes one JSON value.
func printJSON(w io.Writer, value any) error {
	enc := newJSONEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// printJSONLine writes one message as one line.
func printJSONLine(w io.Writer, m proto.Message) error {
	value, err := jsonValue(m)
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
		value, err := jsonValue(m)
		if err != nil {
			return err
		}
		values = append(values, value)
	}
	return printJSON(w, values)
}

// printTable writes rows in columns. Cells must not hold tabs or line breaks.
func printTable(w io.Writer, head []string, rows [][]string) error {
	tab := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		if _, err := fmt.Fprintln(tab, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return tab.Flush()
}
