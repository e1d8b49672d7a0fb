package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) presetCommand(p *codingAgent) *cobra.Command {
	o := &presetOptions{preset: p}
	cmd := &cobra.Command{
		Use:   p.Name + " [flags] [-- ARGS...]",
		Short: "Run " + p.Title + " on a copy of this folder",
		Long: fmt.Sprintf(`Run %[1]s in a sandbox of its own, on a copy of this folder and with your login. ARGS go
to %[2]s. The sandbox is the protection, so it does not ask before it acts; --ask
keeps its prompts. The sandbox is kept at the end, and agbox prints how to get at the work.
The next "agbox %[5]s" here goes on in it, with the copy that it has; --new makes another one.

%[1]s gets its own login and instructions, and these variables if they are set:
  %[4]s
Settings of Git, the login of the GitHub CLI and your SSH agent go in by --with, or if you
agreed to that once on a terminal. One line says what was handed over.
Settings of %[1]s in the folder that run programs with your login, or send it elsewhere,
are shown and asked about. Without a yes %[1]s starts without them.

The image is built at the first use; see "agbox preset". --image, a sandbox file or the
variable %[3]s names another one that contains %[1]s.`, p.Command, p.Title, p.ImageEnv, strings.TrimSuffix(strings.Join(p.Keys, ", ")+"\n  "+strings.Join(p.Settings, ", "), "\n  "), p.Name),
		Example: fmt.Sprintf(`  agbox %[1]s
  agbox %[1]s --rm -- --help
  agbox %[1]s --with git,gh --mount-workspace .`, p.Name),
		Annotations:       map[string]string{ownExitCodes: p.Name},
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return usagef("%q is not a flag of agbox %s. Write -- before arguments for %[2]s itself.", args[0], p.Name)
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
	f.StringSliceVar(&o.with, "with", nil, "hand over `NAMES` too: "+strings.Join(presetExtras, ", ")+"; "+noExtras+" for nothing but the login")
	f.BoolVar(&o.anew, "new", false, "make another sandbox, although this folder has one")
	f.BoolVar(&o.ask, "ask", false, "keep the prompts of "+p.Title)
	f.BoolVar(&o.noWorkspace, "no-workspace", false, "do not copy this folder in")
	f.BoolVar(&o.verbose, "verbose", false, "say what this machine does not have to hand over")
	addBase(cmd, &o.base)
	o.addFlags(cmd)
	shortHelp(cmd, "with", "new", "ask", "no-workspace", "mount-workspace", "rm", "name", "image", "base", "verbose")
	completeWords(cmd, "with", append(slices.Clone(presetExtras), noExtras)...)
	return cmd
}

// shortHelp makes the help of a preset fit a screen: it shows some of the flags, in this order,
// and where the others are.
func shortHelp(cmd *cobra.Command, names ...string) {
	shown := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	shown.SortFlags = false
	for _, name := range names {
		shown.AddFlag(cmd.Flags().Lookup(name))
	}
	flags := strings.TrimRight(shown.FlagUsagesWrapped(helpWidth-flagSlop), "\n") +
		"\n\nAll flags of \"agbox run\" work too, such as -f, -e, -p and --memory, except -d, -i and -t:\nsee \"agbox run --help\"."
	cmd.SetUsageTemplate(strings.NewReplacer(localFlags, flags, globalFlags, "").Replace(usageTemplate))
}

func (o *presetOptions) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	o.stdin, o.tty, o.agent = true, a.terminal() != nil, true
	making, done := a.interruptible(ctx)
	err := o.prepare(making, a, c)
	done()
	if err != nil {
		return cmp.Or(signalled(making), err)
	}
	left, err := o.session(ctx, a, c, o.preset.Run(o.ask, o.off, args))
	if errors.Is(err, exitStatus(codeNoCommand)) {
		a.say("The image does not contain %s. Use an image that does, or install it with --post-create 'npm install -g %s'.", o.preset.Command, o.preset.Package)
		if left != "" && o.existing == "" {
			o.discard(ctx, a, c, left)
		}
		return err
	}
	if left != "" && err != nil {
		o.tellOfWork(a, o.called(left))
	}
	return err
}

// prepare completes the options: the image, what is handed over, and the answers to the
// agent's questions.
func (o *presetOptions) prepare(ctx context.Context, a *app, c *client.Client) error {
	if o.file == "-" {
		return usagef("Standard input goes to %s: name a sandbox file with -f.", o.preset.Name)
	}
	extras, err := o.extras(ctx, a)
	if err != nil {
		return err
	}
	if err := o.chooseImage(a, extras); err != nil {
		return err
	}
	if err := o.complete(ctx, a, c, extras); err != nil {
		return err
	}
	folder := o.folder()
	if folder != "" {
		folder = resolvedLinks(folder)
		o.labels = append(o.labels, folderLabel+"="+folder, folderIDLabel+"="+folderID(folder), presetLabel+"="+o.preset.Name)
	}
	o.names = func(n int) string { return numbered(folder, o.preset.Name, n) }
	found, err := o.earlier(ctx, c, folder)
	if err != nil {
		return err
	}
	if lack := o.loginLack(a); found == nil && lack != "" {
		return usagef("%s", lack) // before the image is built
	}
	if found == nil && o.own != nil {
		if err := o.own.provide(ctx, a, c); err != nil {
			return err
		}
	}
	if err := o.obey(ctx, a, c); err != nil {
		return err
	}
	variables := o.addVariables(a)
	o.postCreate = append([]string{o.preset.Settle(o.ask, o.off)}, o.postCreate...)
	if o.hideMissing = !o.verbose; found != nil {
		return o.takeUp(ctx, a, c, found)
	}
	line, lacks := o.handedOver(a, variables)
	a.say("%s", line)
	for _, lack := range lacks {
		if o.verbose {
			a.say("%s", lack)
		}
	}
	return nil
}

// tellOfWork prints how to get the tool's work out of the sandbox.
func (o *presetOptions) tellOfWork(a *app, sandbox string) {
	parts := []string{fmt.Sprintf("Sandbox %s is kept.", sandbox)}
	if o.workspace != "" {
		parts = append(parts, fmt.Sprintf("`agbox diff %s` shows what it changed, `agbox apply %[1]s` brings that back,", sandbox))
	}
	again := fmt.Sprintf("agbox exec -it %s %s", sandbox, strings.Join(o.preset.Run(true, o.off, nil), " "))
	if o.folder() != "" {
		again = "agbox " + o.preset.Name
	}
	parts = append(parts, fmt.Sprintf("`%s` goes on in it, `agbox rm %s` removes it.", again, sandbox))
	a.say("%s", strings.Join(parts, " "))
}

// presetToolCommand shows and builds what `agbox claude` and its like use.
func (a *app) presetToolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "preset COMMAND",
		Short: "Show and build the images of agbox claude, codex, opencode and gemini",
	}
	onlyCommands(cmd, a.presetLsCommand(), a.presetShowCommand(), a.presetBuildCommand())
	return cmd
}

// addBase adds --base to a command.
func addBase(cmd *cobra.Command, base *string) {
	cmd.Flags().StringVar(base, "base", "", "Debian `IMAGE` that the preset's image is made from (default: $"+presetBaseVariable+" or "+defaultPresetBase+")")
}

// onePreset are the arguments of a command that takes a preset.
func onePreset(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("Name a preset: %s.", strings.Join(presetNames(), ", "))
	}
	if findPreset(args[0]) == nil {
		return usagef("%q is not a preset. The presets are %s.", args[0], strings.Join(presetNames(), ", "))
	}
	return nil
}

// presetItem is a preset in JSON.
type presetItem struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Package string `json:"package"`
	Version string `json:"version"`
	Base    string `json:"base"`
	Image   string `json:"image"`
	Built   bool   `json:"built"`
}

func (a *app) presetLsCommand() *cobra.Command {
	var out output
	var base string
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the presets, and whether their images are built",
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			names, err := imageNames(ctx, c)
			if err != nil {
				return err
			}
			items := collect(allPresets(), func(p codingAgent) presetItem {
				image := presetImage{preset: &p, base: a.presetBase(base), uid: callerUID()}
				return presetItem{
					Name: p.Name, Title: p.Title, Package: p.Package, Version: p.Version,
					Base: image.base, Image: image.name(), Built: names[image.name()],
				}
			})
			return printList(a, out, items, presetColumns, eachRow(func(p presetItem) []view.Cell {
				built := "not built"
				if p.Built {
					built = "built"
				}
				return cells(p.Name, p.Title, p.Version, built, p.Image)
			}))
		}),
	}
	addBase(cmd, &base)
	addTable(cmd, &out)
	return cmd
}

// presetColumns are the columns of the table of presets.
var presetColumns = []view.Column{{Title: "NAME"}, {Title: "AGENT", Omit: 1}, {Title: "VERSION"}, {Title: "STATE"}, {Title: "IMAGE", Min: 16}}

func (a *app) presetShowCommand() *cobra.Command {
	var base string
	cmd := &cobra.Command{
		Use:   "show NAME [flags]",
		Short: "Print the Dockerfile of a preset",
		Long: `Print the Dockerfile that the preset's image is built from, with its arguments filled
in. It is a start for an image of your own, which agbox takes with --image.`,
		Example:   "  agbox preset show claude >Dockerfile",
		ValidArgs: presetNames(),
		Args:      onePreset,
		RunE: func(_ *cobra.Command, args []string) error {
			a.began = true
			_, err := fmt.Fprint(a.stdout, findPreset(args[0]).Recipe(a.presetBase(base), callerUID()))
			return err
		},
	}
	addBase(cmd, &base)
	return cmd
}

func (a *app) presetBuildCommand() *cobra.Command {
	var base string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "build NAME [flags]",
		Short: "Build the image of a preset now, not at its first use",
		Long: `Build the image of a preset and print its name. The output of the build goes to
stderr. The engine builds only the steps that it has not built before.`,
		Example: `  agbox preset build claude
  agbox preset build codex --base node:22-bookworm-slim`,
		ValidArgs: presetNames(),
		Args:      onePreset,
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			image := presetImage{preset: findPreset(args[0]), base: a.presetBase(base), uid: callerUID()}
			_, err := image.build(ctx, a, c, func(text string) {
				if !quiet {
					a.printBuild(text)
				}
			})
			if err == nil {
				_, err = fmt.Fprintln(a.stdout, image.name())
			}
			return err
		}),
	}
	addBase(cmd, &base)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the name of the image")
	return cmd
}

// earlier returns the sandbox to take up: the newest that the preset has made for the folder,
// or the one with the name that was given; nil if a new one is to be made.
func (o *presetOptions) earlier(ctx context.Context, c *client.Client, folder string) (*agboxv1.GetSandboxResponse, error) {
	if folder == "" || o.anew || o.remove {
		return nil, nil
	}
	all, err := c.ListSandboxes(ctx, client.ListOptions{Labels: map[string]string{presetLabel: o.preset.Name}})
	found, _ := byFolder(near(all, folder))
	list := found[folder]
	if o.name != "" {
		list = slices.DeleteFunc(list, func(h *agboxv1.SandboxHandle) bool { return h.GetName() != o.name })
	}
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return c.GetSandbox(ctx, list[0].GetSandboxId())
}

// takeUp makes the sandbox ready that the preset has made earlier, and says which it is, what
// in it was not brought home, and how it differs from what would be made now.
func (o *presetOptions) takeUp(ctx context.Context, a *app, c *client.Client, found *agboxv1.GetSandboxResponse) error {
	h := found.GetSandbox()
	o.existing, o.named = h.GetSandboxId(), h.GetName()
	if err := o.keepOff(a, h); err != nil {
		return err
	}
	again := "`agbox " + o.preset.Name + " --new` makes another."
	text := fmt.Sprintf("Taking up sandbox %s, made %s", nameOf(h), a.since(h.GetCreatedAt()))
	if err := o.wake(ctx, a, c, h); err != nil {
		return fmt.Errorf("sandbox %s of this folder cannot be taken up: %w %s", nameOf(h), err, again)
	}
	ready, err := c.GetSandbox(ctx, o.existing)
	if err != nil {
		return err
	}
	left, err := losses(ctx, c, ready.GetSandbox())
	if err != nil {
		return err
	}
	if home := left.home(); home != "" {
		text += ", with " + home + " not brought home"
	}
	if left.commands != "" {
		again = fmt.Sprintf("It has %s: `agbox attach %s` goes there. ", left.commands, nameOf(h)) + again
	}
	a.say("%s. %s", text, again)
	return o.sayChanged(ctx, a, c, found)
}

// wake starts a sandbox that does not run.
func (o *presetOptions) wake(ctx context.Context, a *app, c *client.Client, h *agboxv1.SandboxHandle) error {
	switch h.GetState() {
	case agboxv1.SandboxState_SANDBOX_STATE_READY:
		return nil
	case agboxv1.SandboxState_SANDBOX_STATE_PENDING:
	default:
		if err := c.ResumeSandbox(ctx, h.GetSandboxId()); err != nil {
			return err
		}
	}
	p := &progress{shownLine: shownLine{app: a}}
	defer p.clear()
	_, err := c.WaitReady(ctx, h.GetSandboxId(), client.OnEvent(h.GetLastEventSequence(), p.show))
	return err
}

// keepOff leaves the settings of the folder out if nobody has agreed to them now, or when the
// sandbox was made.
func (o *presetOptions) keepOff(a *app, h *agboxv1.SandboxHandle) error {
	if h.GetLabels()[settingsLabel] == settingsOff {
		if !o.off {
			a.say("%s starts without the settings of this folder, as when sandbox %s was made.", o.preset.Title, nameOf(h))
		}
		o.off = true
		return nil
	}
	if o.off && len(o.preset.Off) == 0 {
		return usagef("%s has no switch to leave out settings of the folder in sandbox %s, which was made with them. Agree to them on a terminal, give --trust, or make another sandbox with --new.",
			o.preset.Title, nameOf(h))
	}
	return nil
}

// sayChanged says how a sandbox differs from what would be made now.
func (o *presetOptions) sayChanged(ctx context.Context, a *app, c *client.Client, found *agboxv1.GetSandboxResponse) error {
	o.quiet = true
	input, err := o.request(ctx, a, c, []string{found.GetSandbox().GetName()}, nil)
	o.quiet = false
	if err != nil {
		return err
	}
	now, problem, err := resolveQuietly(ctx, c, input.Request)
	switch {
	case err != nil:
		return err
	case problem != "":
		a.say("The sandbox stays as it was made: %s", problem)
		return nil
	case now == nil:
		return nil // an old daemon cannot say
	}
	now.Labels = found.GetCreateSpec().GetLabels()
	if changed := differs(now, found.GetCreateSpec()); changed != "" {
		a.say("It was made from another version of the file or the image, or with other flags and variables (%s), and stays as it is.", changed)
	}
	return nil
}
