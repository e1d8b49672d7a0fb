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
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
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
			return a.printf("The sandbox spec is valid. Image: %s%s.\n", printable(cmp.Or(spec.GetImage(), "built from "+cmp.Or(spec.GetBuild().GetContext(), "a Dockerfile"))), withServices(spec))
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

func (a *app) trustCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust COMMAND",
		Short: "Decide what sandbox files may access on this machine",
		Long: `Decide what sandbox files may access on this machine.

A sandbox file that comes with a folder may request mounts, copies from other
folders, ports, tools and variables of this machine. agbox asks you once, and your
answer holds for exactly this content: if the file changes, agbox shows the
difference and asks again. A file that requests nothing is used without a question.
agbox never asks about flags, because you gave them yourself.`,
	}
	onlyCommands(cmd, a.trustReviewCommand(), a.trustListCommand(), a.trustShowCommand(), a.trustRevokeCommand())
	return cmd
}

func (a *app) trustReviewCommand() *cobra.Command {
	var o specOptions
	cmd := &cobra.Command{
		Use:   "review [FILE] [flags]",
		Short: "Show what a sandbox file requests, and decide",
		Long: `Show what a sandbox file requests of this machine and decide about it, without
creating a sandbox. The default FILE is the agbox.yaml of this folder.`,
		Args: arguments(0, 1, "one FILE"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			input, out, err := o.resolve(ctx, a, c, args)
			if err != nil {
				return err
			}
			if question(input, out.GetHostRequests()) == nil {
				return a.println("The sandbox spec requests nothing of this machine, so no decision is needed.")
			}
			if err := o.agree(ctx, a, input, out.GetHostRequests()); err != nil {
				return err
			}
			return a.printf("%s is trusted with its current content.\n", printable(input.Files[0].Path))
		}),
	}
	o.addFlags(cmd)
	return cmd
}

// trusted makes the RunE of a command on the stored answers. It needs no daemon.
func (a *app) trusted(do func(store trustStore, args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		a.began = true
		store, err := newTrustStore()
		if err != nil {
			return err
		}
		return do(store, args)
	}
}

func (a *app) trustListCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the files that you trust",
		RunE: a.trusted(func(store trustStore, _ []string) error {
			all, err := store.list()
			if err != nil {
				return err
			}
			return printList(a, out, all, []view.Column{
				{Title: "FILE", Min: 16}, {Title: "REQUESTS", Right: true, Omit: 1}, {Title: "DANGEROUS", Right: true}, {Title: "TRUSTED", Omit: 2},
			}, eachRow(func(t trustAnswer) []view.Cell {
				return cells(t.Path, len(t.Requests), dangerous(t.Requests), a.agoCell(t.TrustedAt))
			}))
		}),
	}
	addTable(cmd, &out)
	return cmd
}

func (a *app) trustShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE",
		Short: "Show what you agreed to for a file, with its content",
		Args:  arguments(1, 1, "a FILE"),
		RunE: a.trusted(func(store trustStore, args []string) error {
			answer, err := findAnswer(store, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "%s, trusted on %s:\n\n", printable(answer.Path), answer.TrustedAt.Local().Format("2006-01-02 15:04"))
			for _, r := range answer.Requests {
				mark := " "
				if r.Dangerous {
					mark = "!"
				}
				fmt.Fprintf(a.stdout, "  %s %s  %s\n", mark, printable(r.Text), printable(r.Where))
			}
			for _, f := range answer.Files {
				content := f.Content
				if f.Secret {
					content = "(its values are not stored)\n"
				}
				fmt.Fprintf(a.stdout, "\n--- %s\n%s", printable(f.Path), printableLines(content))
			}
			return nil
		}),
	}
}

func (a *app) trustRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke FILE...",
		Short: "Stop trusting a file; agbox asks again",
		Args:  arguments(1, -1, "a FILE"),
		RunE: a.trusted(func(store trustStore, args []string) error {
			for _, name := range args {
				answer, err := findAnswer(store, name)
				if err != nil {
					return err
				}
				if err := store.revoke(answer.Path); err != nil {
					return err
				}
				a.say("%s is no longer trusted. Existing sandboxes keep their access.", answer.Path)
			}
			return nil
		}),
	}
}

// findAnswer finds the answer for a file, or for the agbox.yaml of a folder.
func findAnswer(store trustStore, name string) (*trustAnswer, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	for _, candidate := range []string{path, filepath.Join(path, defaultSpecFile)} {
		if _, before, err := store.trusted(trustQuestion{Path: candidate}); before != nil || err != nil {
			return before, err
		}
	}
	return nil, usagef("%s is not trusted. `agbox trust ls` lists the trusted files.", printable(path))
}
