package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/docs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config COMMAND",
		Short: "Check a sandbox file, or show the merged result",
	}
	schema := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of agbox.yaml, for completion in editors",
		RunE: func(*cobra.Command, []string) error {
			a.began = true
			_, err := a.stdout.Write(docs.Schema)
			return err
		},
	}
	onlyCommands(cmd, a.configValidateCommand(), a.configShowCommand(), schema)
	return cmd
}

func (a *app) configValidateCommand() *cobra.Command {
	var o specOptions
	cmd := &cobra.Command{
		Use:   "validate [FILE] [flags]",
		Short: "Show every problem of a sandbox file, with its line",
		Long: `Show every problem of a sandbox file, with its line and field, and the fields of
its base files that are ignored. Nothing is created or pulled, so a missing image
is reported only by create.`,
		Args:              arguments(0, 1, "one FILE"),
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			input, out, err := o.resolve(ctx, a, c, args)
			if err != nil {
				return err
			}
			spec := out.GetCreateSpec()
			if q := question(input, out.GetHostRequests()); q != nil {
				text, _ := requestScreen(*q, nil, extent{})
				a.sayEach(strings.TrimSuffix(text, "\n"))
			}
			_, err = fmt.Fprintf(a.stdout, "The sandbox spec is valid. Image: %s%s.\n", printable(cmp.Or(spec.GetImage(), "built from "+cmp.Or(spec.GetBuild().GetContext(), "a Dockerfile"))), withServices(spec))
			return err
		}),
	}
	o.addFlags(cmd)
	return cmd
}

func withServices(spec *agboxv1.CreateSpec) string {
	if n := len(spec.GetServices()); n > 0 {
		return ", with " + plural(n, "service", "services")
	}
	return ""
}

func (a *app) configShowCommand() *cobra.Command {
	var o specOptions
	out := specFormat("yaml")
	cmd := &cobra.Command{
		Use:   "show [FILE] [flags]",
		Short: "Show a sandbox file merged with its base files and the flags",
		Long: `Show the spec that create would store: base files, sandbox file and flags merged,
with absolute paths. The output is itself a sandbox file.`,
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
	completeWords(cmd, "output", "yaml", "json")
	return cmd
}

// resolve asks the daemon for the spec that the files and flags describe.
func (o *specOptions) resolve(ctx context.Context, a *app, c *client.Client, args []string) (*client.SpecInput, *agboxv1.ResolveSpecResponse, error) {
	if len(args) > 0 {
		if o.file != "" {
			return nil, nil, usagef("Two files are given: omit -f or %s.", args[0])
		}
		if o.file = args[0]; o.use(o.file) {
			o.file = ""
			if err := o.find(a); err != nil {
				return nil, nil, err
			}
		}
	}
	input, err := orLeave(ctx, func() (*client.SpecInput, error) { return o.sandboxRequest(ctx, a, c, "", nil) })
	if err != nil {
		return nil, nil, err
	}
	out, err := o.resolved(ctx, a, c, input.Request)
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
		return fmt.Errorf("use yaml or json")
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
	return printJSON(w, json.RawMessage(text))
}

// starter is the file that init writes. Its comments begin with "# ", its disabled
// fields with "#" alone.
//
//go:embed starter.yaml
var starter []byte

func (a *app) initCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "init [flags]",
		Short: "Write a starter " + defaultSpecFile,
		Long: `Write an ` + defaultSpecFile + ` into this folder. It describes a sandbox with an image
and shows the other fields in comments.`,
		RunE: func(*cobra.Command, []string) error {
			a.began = true
			return a.writeStarter(force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return cmd
}

func (a *app) writeStarter(force bool) error {
	if force {
		// What stands there may be a link, or another name of a file elsewhere.
		if err := unix.Unlink(defaultSpecFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.say("Cannot replace %s: %v.", defaultSpecFile, err)
			return exitStatus(codeFailure)
		}
	}
	file, err := os.OpenFile(defaultSpecFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		a.say("This folder already has an %s. Use --force to replace it.", defaultSpecFile)
		return exitStatus(codeConflict)
	}
	if err == nil {
		_, err = file.Write(starter)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		a.say("Cannot write %s: %v.", defaultSpecFile, err)
		return exitStatus(codeFailure)
	}
	a.say("Wrote %s. `agbox config validate` checks it; `agbox up` creates the sandbox of this folder.", defaultSpecFile)
	return nil
}
