package main

import (
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
	stdin, tty bool
	detachKeys string
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE|-f FILE [--] COMMAND ARGS...",
		Short: "Make a sandbox, run a command in it and end with its exit code",
		Long: `Make a sandbox as "agbox create" does, run a command in it as "agbox exec" does,
and end with its exit code. With --rm the sandbox is removed at the end, however
that comes: also after Ctrl-C, a closed terminal or a failure. A command that is
left running by the detach keys, or because agbox itself was killed, keeps its
sandbox until it has ended and a minute, or --idle-ttl, has passed.

The image is named first, unless a sandbox file is used: with -f, or with the
agbox.yaml of this folder where "--" comes first. Flags after IMAGE belong to the
command.`,
		Example: `  agbox run --rm debian:12 -- sh -c 'id; uname -a'
  agbox run --rm -it --workspace . debian:12 bash
  agbox run --rm -f agbox.yaml -- make test`,
		Annotations:       map[string]string{ownExitCodes: "run"},
		ValidArgsFunction: a.completeImages(1),
	}
	var command []string
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		command = args
		if cmd.ArgsLenAtDash() != 0 && o.file == "" && len(args) > 0 {
			if o.image != "" {
				return usagef("The image is named twice, as %s and as %s. Leave --image out, or write -- before the command.", o.image, args[0])
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
	f.BoolVarP(&o.stdin, "interactive", "i", false, "pass our standard input on to the command")
	f.BoolVarP(&o.tty, "tty", "t", false, "run the command on a terminal")
	o.addFlags(cmd)
	return cmd
}

// addFlags adds the flags that all commands have which make a sandbox for themselves.
func (o *runOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.remove, "rm", false, "remove the sandbox at the end, however that comes")
	f.StringVar(&o.name, "name", "", "`NAME` of the sandbox")
	addDetachKeys(cmd, &o.detachKeys)
	o.createOptions.addFlags(cmd)
	f.BoolVar(&o.keepFailed, "keep-failed", false, "keep a sandbox that fails, to look at it")
}

// run makes the sandbox, runs the command and sees to the end of both.
func (o *runOptions) run(ctx context.Context, a *app, c *client.Client, command []string) error {
	left, err := o.session(ctx, a, c, command)
	if left != "" && err != nil && a.width() > 0 {
		// Unlike a container that has ended, it goes on using memory.
		a.say("Sandbox %s is kept: `agbox rm %[1]s` removes it, and --rm does by itself.", left)
	}
	return err
}

// session is run; it returns the id of a sandbox that it has left, else "".
func (o *runOptions) session(ctx context.Context, a *app, c *client.Client, command []string) (left string, err error) {
	exec := execOptions{stdin: o.stdin, tty: o.tty, detachKeys: o.detachKeys, fleeting: o.remove}
	if o.stdin && o.tty && a.terminal() == nil {
		return "", usagef("With -it the command gets our terminal, but standard input is none. Leave out -t to pass a file or a pipe on, or -i to only look on.")
	}
	if _, err := parseDetachKeys(o.detachKeys); err != nil {
		return "", err
	}
	// Whatever ends us is to be heard of, now or by make and exec: the sandbox would be left behind.
	_, deaf := a.signals(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer deaf()
	id, err := o.make(ctx, a, c)
	if err != nil {
		return "", err
	}
	err = exec.run(ctx, a, c, append([]string{id, "--"}, command...))
	switch {
	case err == nil: // an exit code is an error too: its user has left the command
		return id, nil
	case o.remove:
		o.discard(ctx, a, c, id)
		return "", err
	}
	return id, err
}

// make makes the sandbox. A signal removes what there is of it.
func (o *runOptions) make(ctx context.Context, a *app, c *client.Client) (string, error) {
	var names []string
	if o.name != "" {
		names = append(names, o.name)
	}
	making, done := a.interruptible(ctx)
	in, err := orLeave(making, func() (*client.SpecInput, error) { return o.request(a, names, nil) })
	id := ""
	if err == nil {
		if o.remove {
			// The daemon sees to it where we cannot.
			in.Request.CreateSpec.IdleAction = agboxv1.IdleAction_IDLE_ACTION_REMOVE
		}
		id, err = o.create(making, a, c, in)
	}
	done()
	var sig interrupted
	switch {
	case !errors.As(context.Cause(making), &sig):
		return id, err
	case err == nil: // it came when all was made
		o.discard(ctx, a, c, id)
	case !errors.Is(err, context.Canceled):
		return "", err
	}
	return "", exitStatus(codeSignal + int(sig))
}

// discard removes the sandbox. A signal ends the wait for that.
func (o *runOptions) discard(ctx context.Context, a *app, c *client.Client, id string) {
	ctx, done := a.interruptible(ctx)
	defer done()
	a.removeSandbox(ctx, c, id)
}
