package main

import (
	"cmp"
	"context"
	"errors"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// runOptions make a sandbox for one command.
type runOptions struct {
	createOptions
	name       string
	remove     bool
	detach     bool
	stdin, tty bool
	detachKeys string
	// existing is the id of the sandbox to use instead of a new one.
	existing string
	// agent means that the command is one.
	agent bool
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE|-f FILE [--] COMMAND ARGS...",
		Short: "Create a sandbox, run a command in it and exit with its code",
		Long: `Create a sandbox like "agbox create", run a command in it like "agbox exec", and
exit with the command's exit code. With --rm the sandbox is always removed at the
end, also after Ctrl-C, a closed terminal or a failure. If the command keeps
running, because of the detach keys or because agbox was killed, the sandbox is
removed one minute (or --idle-ttl) after the command has ended. With -d the id of the
command is printed and it runs in the background: "agbox logs", "agbox attach" and
"agbox wait" take the id.

The first argument is the image, unless a sandbox file is used: with -f, or with
the agbox.yaml of this folder if "--" is the first argument. Flags after IMAGE
belong to the command.`,
		Example: `  agbox run --rm debian:12 -- sh -c 'id; uname -a'
  agbox run --rm -it --workspace . debian:12 bash
  agbox run --rm -f agbox.yaml -- make test
  job=$(agbox run -d --rm -v .:/src:rw -w /src golang make); agbox logs -f $job`,
		Annotations:       map[string]string{ownExitCodes: "run", endsInText: "yes"},
		ValidArgsFunction: a.completeImages(1),
	}
	var command []string
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		command = args
		if cmd.ArgsLenAtDash() != 0 && o.file == "" && len(args) > 0 {
			if o.image != "" {
				return usagef("The image is given twice, as %s and as %s. Omit --image, or write -- before the command.", o.image, args[0])
			}
			o.image, command = args[0], commandOf(args)
		}
		if len(command) == 0 {
			return usagef("Name an image and a command, for example `agbox run --rm debian:12 -- ls -l`.")
		}
		return nil
	}
	cmd.RunE = a.withSignals(func(ctx context.Context, c *client.Client, _ []string) error { return o.run(ctx, a, c, command) })
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.SortFlags = false
	f.BoolVarP(&o.detach, "detach", "d", false, "print the id of the command and run it in the background")
	f.BoolVarP(&o.stdin, "interactive", "i", false, "pass standard input to the command")
	f.BoolVarP(&o.tty, "tty", "t", false, "run the command on a terminal")
	o.addFlags(cmd)
	return cmd
}

// addFlags adds the flags that all commands share that create their own sandbox.
func (o *runOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.remove, "rm", false, "always remove the sandbox at the end")
	f.StringVar(&o.name, "name", "", "`NAME` of the sandbox")
	addDetachKeys(cmd, &o.detachKeys)
	o.createOptions.addFlags(cmd)
	f.BoolVar(&o.keepFailed, "keep-failed", false, "keep a sandbox that fails, for inspection")
}

// run creates the sandbox and runs the command. It says so if the sandbox is kept.
func (o *runOptions) run(ctx context.Context, a *app, c *client.Client, command []string) error {
	left, err := o.session(ctx, a, c, command)
	if left != "" && o.detach && err == nil && !o.remove && a.width() > 0 {
		a.say("The command runs in sandbox %s. `agbox rm %[1]s` removes both.", o.called(left))
	}
	if left != "" && err != nil && a.width() > 0 {
		// Unlike an exited container, it keeps using memory.
		a.say("Sandbox %s is kept. Remove it with `agbox rm %[1]s`, or use --rm next time.", o.called(left))
	}
	return err
}

// called returns the name of the sandbox, otherwise its id.
func (o *runOptions) called(id string) string { return cmp.Or(o.named, o.name, id) }

// session does the work of run. It returns the id of the sandbox if it was kept, else "".
func (o *runOptions) session(ctx context.Context, a *app, c *client.Client, command []string) (left string, err error) {
	exec := execOptions{detach: o.detach, stdin: o.stdin, tty: o.tty, detachKeys: o.detachKeys, fleeting: o.remove && !o.detach, agent: o.agent}
	if o.stdin && o.tty && !o.detach && a.terminal() == nil {
		return "", errNoTerminal
	}
	if _, err := parseDetachKeys(o.detachKeys); err != nil {
		return "", err
	}
	// Subscribe before the first step: a signal between two steps would leave the sandbox behind.
	_, unsubscribe := a.signals(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer unsubscribe()
	id, err := o.make(ctx, a, c)
	if err != nil {
		return "", err
	}
	err = exec.run(ctx, a, c, append([]string{id, "--"}, command...))
	if _, ended := errors.AsType[exitStatus](err); ended {
		a.tellUncovered(ctx, c, id)
	}
	switch {
	case err == nil: // an exit code is an error too, so the user has detached from the command, or -d did
		return id, nil
	case o.remove:
		o.tellOfLoss(ctx, a, c, id)
		o.discard(ctx, a, c, id)
		return "", err
	}
	return id, err
}

// make creates the sandbox, unless one is to be used that exists. On a signal it removes the
// sandbox.
func (o *runOptions) make(ctx context.Context, a *app, c *client.Client) (string, error) {
	if o.existing != "" {
		return o.existing, nil
	}
	var names []string
	if o.name != "" {
		names = append(names, o.name)
	}
	making, done := a.interruptible(ctx)
	in, err := orLeave(making, func() (*client.SpecInput, error) { return o.request(making, a, c, names, nil) })
	id := ""
	if err == nil {
		if o.remove {
			// The daemon removes it if agbox is killed.
			in.Request.CreateSpec.IdleAction = agboxv1.IdleAction_IDLE_ACTION_REMOVE
		}
		id, err = o.create(making, a, c, in)
	}
	done()
	stopped := signalled(making)
	switch {
	case stopped == nil:
		return id, err
	case err == nil: // the signal came after the sandbox was ready
		o.discard(ctx, a, c, id)
	case !errors.Is(err, context.Canceled):
		return "", err
	}
	return "", stopped
}

// tellOfLoss says which changes and commits of a copied workspace --rm removes with the sandbox. It was
// asked for, so there is no question.
func (o *runOptions) tellOfLoss(ctx context.Context, a *app, c *client.Client, id string) {
	ctx, done := a.interruptible(ctx)
	defer done()
	out, err := c.GetSandbox(ctx, id)
	if err != nil {
		return
	}
	if lost, err := lostWork(ctx, c, out.GetSandbox()); err == nil && !lost.none() {
		how := "`agbox apply`"
		switch {
		case lost.commits != "" && (lost.alone || lost.tags || len(lost.nested) > 0):
			how += ", for commits a bundle of git,"
		case lost.commits != "":
			how += ", for commits with --branch,"
		}
		a.say("--rm removes the sandbox with %s. Without --rm, %s could bring that back.", lost, how)
	}
}

// discard removes the sandbox and waits until it is gone. A signal ends the wait.
func (o *runOptions) discard(ctx context.Context, a *app, c *client.Client, id string) {
	ctx, done := a.interruptible(ctx)
	defer done()
	a.removeSandbox(ctx, c, id)
}
