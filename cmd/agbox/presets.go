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

// presetCommands makes a command for each tool that has a preset.
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
		Long: fmt.Sprintf(`Run %[1]s in a sandbox of its own, on this folder and with your login, like
"agbox run --workspace . --tool %[1]s". ARGS go to %[1]s.

This folder is copied in, so %[1]s cannot change the original. The sandbox is kept at
the end, and agbox prints how to copy the work out. With --mount-workspace . %[1]s
gets the folder itself, writable. With --rm the sandbox is removed at the end.

The image must contain %[1]s. --image, a sandbox file or the variable %[2]s
names it. In an image with Node.js, --post-create installs %[1]s:
  --post-create '%[3]s'`, tool.Name, p.ImageEnv, p.Install),
		Example: fmt.Sprintf(`  agbox %[1]s --image node:22 --post-create '%[3]s'
  %[2]s=my/%[1]s agbox %[1]s -- --help`, tool.Name, p.ImageEnv, p.Install),
		Annotations:       map[string]string{ownExitCodes: tool.Name},
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return usagef("%q is not a flag of agbox %s. Write -- before arguments for %[2]s itself.", args[0], tool.Name)
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
	f.BoolVar(&o.noWorkspace, "no-workspace", false, "do not copy this folder in")
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
		a.say("The image does not contain %s. Use an image that does, or install it with --post-create '%s'.", o.tool.Preset.Command[0], o.tool.Preset.Install)
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

// chooseImage takes the image from the environment if neither flags nor files name one.
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
		return usagef("Name an image that contains %[1]s, with --image, the variable %[2]s or an %[3]s in this folder. An image with Node.js works with --post-create '%[4]s'.",
			p.Command[0], p.ImageEnv, defaultSpecFile, p.Install)
	}
	o.image = image
	return nil
}

// complete adds the tools and this folder to the spec of the flags and files.
func (o *presetOptions) complete(ctx context.Context, a *app, c *client.Client) error {
	if o.file == "-" {
		return usagef("Standard input goes to %s: name a sandbox file with -f.", o.tool.Name)
	}
	quiet := *a
	quiet.stderr = io.Discard // create prints the same notices
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
			spec = out.GetCreateSpec() // create reports the problems
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

// missingTools are the preset's tools that the spec does not have. Optional ones are
// included only if this machine has them.
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

// tellOfWork prints how to get the tool's work out of the sandbox.
func (o *presetOptions) tellOfWork(a *app, id string) {
	parts := []string{fmt.Sprintf("Sandbox %s is kept.", id)}
	if o.workspace != "" {
		target := "/workspace"
		if at := strings.LastIndex(o.workspace, ":/"); at > 0 {
			target = o.workspace[at+1:]
		}
		parts = append(parts, fmt.Sprintf("`agbox cp %s:%s/. DIR` copies its work out,", id, target))
	}
	parts = append(parts, fmt.Sprintf("`agbox exec -it %s %s` continues in it, `agbox rm %[1]s` removes it.", id, o.tool.Preset.Command[0]))
	a.say("%s", strings.Join(parts, " "))
}
