package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// addServiceFlag adds --service to the flags of exec and shell.
func (o *execOptions) addServiceFlag(f *pflag.FlagSet) {
	f.StringVar(&o.service, "service", "", "run it in the container of the service `NAME`; agbox keeps nothing of it")
}

// ownedFlags are of what agbox keeps of a command, so none of them goes with --service.
var ownedFlags = []string{"detach", "name", "timeout", "idle-timeout", "grace", "max-log", "detach-keys", "show-secrets"}

// checkService refuses flags that do not go with --service.
func (o *execOptions) checkService(f *pflag.FlagSet) error {
	if o.service == "" {
		return nil
	}
	var err error
	f.Visit(func(flag *pflag.Flag) {
		if slices.Contains(ownedFlags, flag.Name) {
			err = usagef("--%s does not go with --service: the engine runs that command, and agbox keeps nothing of it.", flag.Name)
		}
	})
	return err
}

// inService runs a command in the container of a service.
func (o *execOptions) inService(ctx context.Context, a *app, c *client.Client, sandbox string, command []string) error {
	in, err := o.request(a, sandbox, command)
	if err != nil {
		return err
	}
	t := a.terminal()
	if o.tty && o.stdin && t == nil {
		return usagef("-it needs a terminal, but standard input is not one. Omit -t to pass a file or a pipe, or omit -i to only watch.")
	}
	if in.SandboxId, err = a.sandbox(ctx, c, sandbox, changes); err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(ctx)
	signals, stop := a.signals(syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGWINCH, syscall.SIGPIPE)
	defer stop()
	var others sync.WaitGroup
	defer others.Wait()
	defer leave(nil)
	streams := client.ServiceStreams{Stdout: a.stdout, Stderr: a.stderr}
	sizes := make(chan *agboxv1.TerminalSize)
	streams.Sizes = sizes
	others.Go(func() { obeyInService(ctx, leave, t, signals, sizes) })
	if o.stdin {
		input := make(chan []byte)
		streams.Input = input
		if o.tty {
			if err := t.raw(); err != nil {
				return err
			}
			defer t.restore()
		}
		unread, err := readInput(a.stdin, func(p []byte, err error) bool { return passInput(ctx, input, p, err) })
		if err != nil {
			return err
		}
		defer unread()
		defer leave(nil) // before the reader is awaited
	}
	code, err := c.ExecInService(ctx, &agboxv1.ServiceCommand{
		SandboxId: in.GetSandboxId(), Service: o.service, Command: in.GetCommand(), Cwd: in.GetCwd(), Env: in.GetEnvOverrides(), User: in.GetUser(),
		Stdin: o.stdin, Tty: o.tty, TerminalSize: in.GetTerminalSize(),
	}, streams)
	if t != nil {
		t.restore()
	}
	var sig interrupted
	switch {
	case errors.As(context.Cause(ctx), &sig):
		a.say("The command in service %s may go on until the service stops: agbox does not own it.", o.service)
		return exitStatus(codeSignal + int(sig))
	case err != nil:
		return err
	case code != 0:
		return exitStatus(code)
	}
	return nil
}

// passInput passes a piece of input on. It returns false to stop reading.
func passInput(ctx context.Context, input chan<- []byte, p []byte, err error) bool {
	if err != nil {
		close(input)
		return false
	}
	select {
	case input <- slices.Clone(p): // the reader uses p again
		return true
	case <-ctx.Done():
		return false
	}
}

// obeyInService ends the command at a signal, and passes on the size of the terminal.
func obeyInService(ctx context.Context, leave context.CancelCauseFunc, t *terminal, signals <-chan os.Signal, sizes chan<- *agboxv1.TerminalSize) {
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGWINCH {
				leave(interrupted(s.(syscall.Signal)))
				return
			}
			if t == nil || t.size() == nil {
				continue
			}
			select {
			case sizes <- t.size():
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
