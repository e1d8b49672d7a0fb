package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/projections"
)

// presetOptions run a built-in tool in a sandbox of its own.
type presetOptions struct {
	runOptions
	tool        *projections.Tool
	noWorkspace bool
}

// presetCommands makes the command of each tool that is a program.
func (a *app) presetCommands() []*cobra.Command {
	var all []*cobra.Command
	for _, tool := range projections.All() {
		if tool.Preset != nil {
			all = append(all, a.presetCommand(&tool))
		}
	}
	return all
}

func (a *app) presetCommand(tool *projections.Tool) *cobra.Command {
	o := &presetOptions{tool: tool}
	p := tool.Preset
	cmd := &cobra.Command{
		Use:   tool.Name + " [flags] [-- ARGS...]",
		Short: "Run " + tool.Name + " on a copy of this folder",
		Long: fmt.Sprintf(`Run %[1]s in a sandbox of its own, on this folder and with your login: as "agbox run
--workspace . --tool %[1]s" does. ARGS go to %[1]s.

This folder is copied in, so that nothing %[1]s does reaches it. The sandbox is kept
at the end, and how to get the work out of it is said then. --mount-workspace .
gives %[1]s the folder itself instead, to write to; --rm removes the sandbox.

The image must have %[1]s. It is that of --image, of a sandbox file, or of the
variable %[2]s. In an image with Node.js it can be installed
by --post-create '%[3]s'.`, tool.Name, p.ImageEnv, p.Install),
		Example: fmt.Sprintf(`  agbox %[1]s --image node:22 --post-create '%[3]s'
  %[2]s=my/%[1]s agbox %[1]s -- --help`, tool.Name, p.ImageEnv, p.Install),
		Annotations:       map[string]string{ownExitCodes: tool.Name},
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return usagef("%q is no flag of agbox %s. Write -- before what is for %[2]s itself.", args[0], tool.Name)
			}
			return nil
		},
		RunE: a.withSignals(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, args)
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.SortFlags = false
	f.BoolVar(&o.noWorkspace, "no-workspace", false, "leave this folder out")
	o.addFlags(cmd)
	return cmd
}

func (o *presetOptions) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	o.stdin, o.tty = true, a.terminal() != nil
	if err := o.chooseImage(a); err != nil {
		return err
	}
	if err := o.complete(ctx, a, c); err != nil {
		return err
	}
	left, err := o.session(ctx, a, c, append(slices.Clone(o.tool.Preset.Command), args...))
	var code exitStatus
	if errors.As(err, &code) && int(code) == codeNoCommand {
		a.say("The image has no %s. Take one that does, or install it with --post-create '%s'.", o.tool.Preset.Command[0], o.tool.Preset.Install)
		if left != "" {
			o.discard(ctx, a, c, left)
		}
		return err
	}
	if left != "" && err != nil {
		o.tellOfWork(a, left)
	}
	return err
}

// chooseImage looks for an image where none is named.
func (o *presetOptions) chooseImage(a *app) error {
	if o.image != "" || o.file != "" || len(o.devcontainers)+len(o.composes) > 0 {
		return nil
	}
	if _, err := os.Stat(defaultSpecFile); err == nil {
		return nil
	}
	p := o.tool.Preset
	image, _ := a.lookupEnv(p.ImageEnv)
	if image == "" {
		return usagef("Name an image that has %[1]s: with --image, by the variable %[2]s, or in an %[3]s here. An image with Node.js does with --post-create '%[4]s'.",
			p.Command[0], p.ImageEnv, defaultSpecFile, p.Install)
	}
	o.image = image
	return nil
}

// complete adds the tools and this folder to what the flags and files say.
func (o *presetOptions) complete(ctx context.Context, a *app, c *client.Client) error {
	if o.file == "-" {
		return usagef("Standard input belongs to %s: name a sandbox file by -f.", o.tool.Name)
	}
	quiet := *a
	quiet.stderr = io.Discard // it is all told when the sandbox is made
	input, err := o.request(&quiet, nil, nil)
	if err != nil {
		return err
	}
	asked := input.Request
	spec := asked.GetCreateSpec()
	if hasFiles(asked) {
		if err := c.Connect(ctx); err != nil {
			return err
		}
		out, err := c.ResolveSpec(ctx, asked)
		if err == nil && out.GetCreateSpec() != nil {
			spec = out.GetCreateSpec() // what is wrong is told when the sandbox is made
		}
	}
	o.tools = append(o.tools, o.missingTools(a, spec)...)
	if spec.GetWorkspace() == nil && !o.noWorkspace {
		here, err := filepath.Abs(".")
		if err != nil {
			return err
		}
		o.workspace = here
	}
	return nil
}

// missingTools are those of the preset that the spec does not have; of those that
// come along only if they are here, the ones that are.
func (o *presetOptions) missingTools(a *app, spec *agboxv1.CreateSpec) []string {
	var names []string
	for _, name := range o.tool.Preset.Tools {
		if !slices.Contains(spec.GetBuiltinTools(), name) {
			names = append(names, name)
		}
	}
	for _, name := range o.tool.Preset.Also {
		whole := !slices.ContainsFunc(a.host().Find(projections.Find(name)), func(f projections.Found) bool { return f.Required && f.Missing != "" })
		if whole && !slices.Contains(spec.GetBuiltinTools(), name) {
			names = append(names, name)
		}
	}
	return names
}

// tellOfWork says how to get at what the tool has done.
func (o *presetOptions) tellOfWork(a *app, id string) {
	parts := []string{fmt.Sprintf("Sandbox %s is kept.", id)}
	if o.workspace != "" {
		target := "/workspace"
		if at := strings.LastIndex(o.workspace, ":/"); at > 0 {
			target = o.workspace[at+1:]
		}
		parts = append(parts, fmt.Sprintf("`agbox cp %s:%s/. DIR` copies its work out,", id, target))
	}
	parts = append(parts, fmt.Sprintf("`agbox exec -it %s %s` goes on in it, `agbox rm %[1]s` removes it.", id, o.tool.Preset.Command[0]))
	a.say("%s", strings.Join(parts, " "))
}
