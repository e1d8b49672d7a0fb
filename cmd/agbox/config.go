package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/docs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config COMMAND",
		Short: "Check a sandbox file, or show what becomes of it",
	}
	onlyCommands(cmd)
	validate := a.configValidateCommand()
	show := a.configShowCommand()
	schema := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of agbox.yaml, with which editors complete it",
		Args:  arguments(0, 0, "nothing"),
		RunE: func(*cobra.Command, []string) error {
			a.began = true
			_, err := a.stdout.Write(docs.Schema)
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	for _, sub := range []*cobra.Command{validate, show, schema} {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	return cmd
}

func (a *app) configValidateCommand() *cobra.Command {
	var o specOptions
	cmd := &cobra.Command{
		Use:   "validate [FILE] [flags]",
		Short: "Tell all that is wrong with a sandbox file, each with its line",
		Long: `Tell all that is wrong with a sandbox file, each with its line and field, and
what of its base files has no meaning here. Nothing is made or pulled: whether
the images exist shows at create.`,
		Args:              arguments(0, 1, "one FILE"),
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			input, out, err := o.resolve(ctx, a, c, args)
			if err != nil {
				return err
			}
			spec := out.GetCreateSpec()
			if q := question(input, out.GetHostRequests()); q != nil {
				a.sayEach(strings.TrimSuffix(requestScreen(*q, nil), "\n"))
			}
			_, err = fmt.Fprintf(a.stdout, "The description is valid: a sandbox of the image %s%s.\n", printable(spec.GetImage()), withServices(spec))
			return err
		}),
	}
	o.addFlags(cmd)
	return cmd
}

func withServices(spec *agboxv1.CreateSpec) string {
	switch n := len(spec.GetServices()); n {
	case 0:
		return ""
	case 1:
		return " with 1 service"
	default:
		return fmt.Sprintf(" with %d services", n)
	}
}

func (a *app) configShowCommand() *cobra.Command {
	var o specOptions
	out := specFormat("yaml")
	cmd := &cobra.Command{
		Use:   "show [FILE] [flags]",
		Short: "Show what becomes of a sandbox file, its base files and the flags",
		Long: `Show the description that would be stored: base files, sandbox file and flags
merged, paths absolute. What is shown is itself a sandbox file.`,
		Args:              arguments(0, 1, "one FILE"),
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			_, resolved, err := o.resolve(ctx, a, c, args)
			if err != nil {
				return err
			}
			spec := resolved.GetCreateSpec()
			return out.print(a.stdout, spec)
		}),
	}
	o.addFlags(cmd)
	cmd.Flags().VarP(&out, "output", "o", "yaml or json")
	// The names of the flag's values cannot fail to register: the flag is there.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"yaml", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// resolve asks the daemon for the spec that the files and flags describe.
func (o *specOptions) resolve(ctx context.Context, a *app, c *client.Client, args []string) (*client.SpecInput, *agboxv1.ResolveSpecResponse, error) {
	if len(args) > 0 {
		if o.file != "" {
			return nil, nil, usagef("The file is given twice: leave -f or %s out.", args[0])
		}
		o.file = args[0]
	}
	input, err := orLeave(ctx, func() (*client.SpecInput, error) { return o.sandboxRequest(a, "", nil) })
	if err != nil {
		return nil, nil, err
	}
	out, err := a.resolved(ctx, c, input.Request)
	if err == nil && out.GetHostRequests() == nil {
		err = errOldDaemon
	}
	return input, out, err
}

// specFormat is the value of config show -o.
type specFormat string

func (f *specFormat) String() string { return string(*f) }

// Type names the values in the help.
func (f *specFormat) Type() string { return "FORMAT" }

// Set takes the value from the command line.
func (f *specFormat) Set(value string) error {
	if value != "yaml" && value != "json" {
		return fmt.Errorf("there are yaml and json")
	}
	*f = specFormat(value)
	return nil
}

func (f *specFormat) print(w io.Writer, spec *agboxv1.CreateSpec) error {
	if *f == "yaml" {
		text, err := document.WriteYAML(spec.ProtoReflect())
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(spec)
	if err != nil {
		return err
	}
	return printJSON(w, rawJSON(text))
}
