package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// folderFiles are the files that describe the sandbox of a folder, in the order in which
// they are looked for.
var folderFiles = []string{
	defaultSpecFile, "compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml",
	".devcontainer/devcontainer.json", ".devcontainer.json",
}

func (a *app) upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [flags]",
		Short: "Create or start the sandbox of this folder",
		Long: `Create the sandbox of this folder, or start it if it is stopped, wait until it is
ready, and print its id. It does nothing to a sandbox that runs. Its name is that of the
folder unless --name is given. This folder is copied to /workspace unless the file or a
flag names a workspace, or mounts or copies the folder. The main command then keeps the
image's working directory; other commands start in /workspace. --no-workspace copies nothing.

The first of these files describes it, unless -f names one: agbox.yaml, compose.yaml,
compose.yml, docker-compose.yaml, docker-compose.yml, .devcontainer/devcontainer.json,
.devcontainer.json. Other flags are as those of "agbox create", and count only when the
sandbox is created: later, "agbox up" without them starts it with what it has. If the
file has changed since then, or a flag says otherwise, up says what is different and asks
whether to remove the sandbox and make it anew; without a terminal, or if flags with which
it was made are missing, it fails. What was made with -f, --image, --build or --profile is
compared only if these are given again. --recreate makes it anew without that question,
with the flags of now. If that would lose work, up
asks or refuses as "agbox rm" does.`,
		Example: `  agbox up && agbox shell $(basename $PWD)
  agbox up -f compose.yaml --compose-primary web`,
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, _ []string) error {
		again := o
		err := o.run(ctx, a, c)
		if nameTaken(err) { // another `agbox up` has made the sandbox of this folder meanwhile
			return again.run(ctx, a, c)
		}
		return err
	})
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "`NAME` of the sandbox, instead of that of the folder")
	f.BoolVar(&o.noWorkspace, "no-workspace", false, "do not copy this folder in")
	f.BoolVar(&o.recreate, "recreate", false, "remove the sandbox and make it anew if its file or the flags have changed")
	o.addFlags(cmd)
	f.BoolVar(&o.keepFailed, "keep-failed", false, "keep a sandbox that fails, for inspection")
	return cmd
}

func (a *app) downCommand() *cobra.Command {
	var name string
	var remove, force bool
	cmd := &cobra.Command{
		Use:   "down [flags]",
		Short: "Stop the sandbox of this folder",
		Long: `Stop the sandbox that "agbox up" has made for this folder. With --rm it is removed,
with all that is in it. If that would lose work or end commands or agents, down --rm asks
or refuses as "agbox rm" does, unless -f is given.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if force && !remove {
				return usagef("-f is for --rm.")
			}
			return arguments(0, 0, "")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			folder, name, err := folderOf(name)
			if err != nil {
				return err
			}
			found, err := sandboxOf(ctx, c, folder, name)
			if err != nil {
				return err
			}
			if found == nil {
				return fmt.Errorf("there is no sandbox %s of this folder: `agbox up` makes it", name)
			}
			ch := change{ask: c.StopSandbox, wait: func(ctx context.Context, id string) error {
				_, err := c.WaitStopped(ctx, id)
				return err
			}}
			if remove {
				ch.ask = func(ctx context.Context, id string) error { return a.remove(ctx, c, id, true, false) }
				ch.wait = untilEnded(c)
			}
			if force {
				ch.ask = func(ctx context.Context, id string) error {
					return c.DeleteSandboxWith(ctx, id, client.DeleteOptions{RemoveLogs: true})
				}
			}
			return ch.apply(ctx, a, c, []string{found.GetSandbox().GetSandboxId()})
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "`NAME` of the sandbox, instead of that of the folder")
	cmd.Flags().BoolVar(&remove, "rm", false, "remove the sandbox, with all that is in it and the output of its commands")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "with --rm, do not ask, and also remove a sandbox with agents that have not ended")
	return cmd
}

func (o *upOptions) run(ctx context.Context, a *app, c *client.Client) error {
	folder, name, err := folderOf(o.name)
	if err != nil {
		return err
	}
	if o.noWorkspace && o.workspace+o.mountWorkspace != "" {
		return usagef("--no-workspace says that there is no workspace, and another flag names one: give only one of them.")
	}
	found, err := sandboxOf(ctx, c, folder, name)
	if err != nil {
		return err
	}
	given, err := o.given(a)
	if err != nil {
		return err
	}
	if found != nil && !o.recreate {
		if o.keep(found.GetCreateSpec(), given) {
			if len(given) > 0 {
				a.say("Sandbox %s stays as it was made: flags count when it is created.", found.GetSandbox().GetName())
			}
			return o.start(ctx, a, c, found.GetSandbox())
		}
	}
	if err := o.find(a); err != nil {
		return err
	}
	o.labels = append(o.labels, folderLabel+"="+folder, folderIDLabel+"="+folderID(folder))
	if len(given) > 0 {
		o.labels = append(o.labels, flagsLabel+"="+strings.Join(given, ","))
	}
	input, err := o.request(ctx, a, c, []string{name}, nil)
	if err != nil {
		return err
	}
	if o.says, err = o.bringFolder(ctx, c, input, folder, name); err != nil {
		return err
	}
	if found == nil {
		return o.make(ctx, a, c, input)
	}
	anew, err := o.asked(ctx, a, c, input, found)
	switch {
	case err != nil:
		return err
	case anew:
		return o.anew(ctx, a, c, input, found.GetSandbox().GetSandboxId())
	}
	return o.start(ctx, a, c, found.GetSandbox())
}

// start starts a sandbox that does not run, and prints its id.
func (o *upOptions) start(ctx context.Context, a *app, c *client.Client, h *agboxv1.SandboxHandle) error {
	if h.GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		ch := change{ask: c.ResumeSandbox, wait: untilReady(c)}
		return ch.apply(ctx, a, c, []string{h.GetSandboxId()})
	}
	return a.println(h.GetSandboxId())
}

// anew removes a sandbox and makes it again. What the file asks for is agreed to before.
func (o *upOptions) anew(ctx context.Context, a *app, c *client.Client, input *client.SpecInput, id string) error {
	if err := o.agreed(ctx, a, c, input); err != nil {
		return err
	}
	if err := a.remove(ctx, c, id, true, true); err != nil {
		return err
	}
	if err := c.WaitEnded(ctx, id); err != nil {
		return err
	}
	return o.make(ctx, a, c, input)
}

// make makes the sandbox, and says whether this folder is copied.
func (o *upOptions) make(ctx context.Context, a *app, c *client.Client, input *client.SpecInput) error {
	if o.says != "" {
		a.say("%s", o.says)
	}
	return o.createOptions.run(ctx, a, c, input)
}

// find sets the file that describes the sandbox, unless a flag names one.
func (o *specOptions) find(a *app) error {
	if o.use(o.file) {
		o.file = ""
	} else if o.file == "" && o.imageFlag() == "" && len(o.composes)+len(o.devcontainers) == 0 {
		for _, name := range folderFiles {
			if _, err := os.Stat(name); err == nil {
				o.use(name)
				break
			}
		}
	}
	if len(o.composes) != 1 || o.composePrimary != "" {
		return nil
	}
	content, err := filesystem.ReadNamed(o.composes[0], document.MaxBytes)
	if err != nil {
		return usagef("The file %s cannot be read: %v.", o.composes[0], err)
	}
	if o.composePrimary = primaryOf(content); o.composePrimary != "" {
		a.say("Using %s. Commands run in service %s; --compose-primary names another.", o.composes[0], printable(o.composePrimary))
	}
	return nil
}

// use takes a file of another tool as what its name says. It reports whether it did.
func (o *specOptions) use(name string) bool {
	switch document.FormatOf(name) {
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		o.composes = append(o.composes, name)
	case agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER:
		o.devcontainers = append(o.devcontainers, name)
	default:
		return false
	}
	return true
}

// primaryOf returns the service of a compose file in which commands run: the first that is
// built, else the first. It is "" if the file marks one.
func primaryOf(content []byte) string {
	primary, built := "", false
	node := document.YAML("", content, new(document.Report)).Get("services")
	if node == nil {
		return ""
	}
	for _, e := range node.Entries {
		if e.Value.Get("x-agbox") != nil {
			return ""
		}
		if now := e.Value.Get("build") != nil; primary == "" || now && !built {
			primary, built = e.Key.Text, now
		}
	}
	return primary
}

// folderOf returns the current folder and the name of its sandbox.
func folderOf(name string) (folder, sandbox string, err error) {
	if folder, err = thisFolder(); err != nil {
		return "", "", err
	}
	if name != "" {
		return folder, name, nil
	}
	const longest = 63
	if sandbox = slug(filepath.Base(folder), longest); sandbox == "" {
		return "", "", usagef("The name of this folder is not that of a sandbox: give --name.")
	}
	return folder, sandbox, nil
}

// sandboxOf returns the sandbox of a folder, nil if there is none.
func sandboxOf(ctx context.Context, c *client.Client, folder, name string) (*agboxv1.GetSandboxResponse, error) {
	out, err := c.Candidates(ctx, ofSandbox, name)
	switch {
	case errors.Is(err, client.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var found *agboxv1.GetSandboxResponse
	for _, r := range out.GetReferents() {
		if r.GetName() == name {
			found, err = c.GetSandbox(ctx, r.GetId())
		}
	}
	switch {
	case err != nil || found == nil || found.GetSandbox().GetState() == agboxv1.SandboxState_SANDBOX_STATE_DELETED:
		return nil, err
	case placeOf(found.GetSandbox()).folder != folder:
		return nil, fmt.Errorf("sandbox %s is not that of this folder: choose another name with --name", name)
	}
	return found, nil
}

func (a *app) buildCommand() *cobra.Command {
	var o upOptions
	var quiet bool
	cmd := &cobra.Command{
		Use:   "build [FILE] [flags]",
		Short: "Build the images of the sandbox of this folder",
		Long: `Build the images that the file of this folder builds, with features of development
containers, and print the id of each. No sandbox is made. The file is found as by
"agbox up" unless FILE names it, and the other flags are as there. An image that exists
is not built again; --pull always builds it anyway, on newer base images.
"agbox image build" builds an image from a Dockerfile alone.`,
		Example: `  agbox build && agbox up
  agbox build compose.yaml --profile tools`,
		Args: arguments(0, 1, "one FILE"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) > 0 {
				if o.file != "" {
					return usagef("Two files are given: omit -f or %s.", args[0])
				}
				o.file = args[0]
			}
			return o.buildImages(ctx, a, c, quiet)
		}),
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the ids")
	return cmd
}

// buildImages builds the images that the file and the flags describe.
func (o *upOptions) buildImages(ctx context.Context, a *app, c *client.Client, quiet bool) error {
	if err := o.find(a); err != nil {
		return err
	}
	input, err := o.request(ctx, a, c, nil, nil)
	if err != nil {
		return err
	}
	if err := c.Connect(ctx); err != nil {
		return err
	}
	if err := o.agreed(ctx, a, c, input); err != nil {
		return err
	}
	a.goesOn.is("The build ends, unless a sandbox or another command waits for it too; the engine keeps the steps that are done.")
	made := 0
	var failed error
	err = c.BuildSandboxImages(ctx, input.Request, func(m *agboxv1.BuildSandboxImagesResponse) {
		of := printable(cmp.Or(m.GetService(), o.composePrimary, "primary"))
		switch {
		case m.GetImageId() != "":
			made++
			if _, err := fmt.Fprintf(a.stdout, "%s %s\n", of, m.GetImageId()); err != nil {
				failed = err
			}
		case !quiet:
			a.printBuild(of + ": " + m.GetOutput() + "\n")
		}
	})
	if err == nil && failed == nil && made == 0 {
		a.say("%s builds no image.", filepath.Base(cmp.Or(o.file, "The file")))
	}
	return cmp.Or(err, failed)
}
