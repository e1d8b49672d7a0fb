package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/jsonview"
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

// printJSON writes one JSON value.
func printJSON(w io.Writer, value any) error {
	enc := newJSONEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// printJSONLine writes one message as one line.
func printJSONLine(w io.Writer, m proto.Message) error {
	value, err := jsonview.Marshal(m)
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
		value, err := jsonview.Marshal(m)
		if err != nil {
			return err
		}
		values = append(values, value)
	}
	return printJSON(w, values)
}
