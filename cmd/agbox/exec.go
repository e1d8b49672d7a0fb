package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type execOptions struct {
	detach bool
	user   string
	dir    string
	name   string
	env    []string
	stdin  bool
	tty    bool
}

func (a *app) execCommand() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND ARGS...",
		Short: "Run a command and end with its exit code",
		Long: `Run a command in a sandbox. Its output appears while it runs, stdout and stderr
apart, and agbox ends with its exit code. Ctrl-C, SIGTERM and SIGQUIT go to the
command; three times Ctrl-C within two seconds leaves it running and ends agbox
alone. Flags after SANDBOX belong to the command.`,
		Example: `  agbox exec demo -- ls -l /
  agbox exec -u nobody -w /tmp -e DEBUG=1 demo sh -c 'id; pwd'
  job=$(agbox exec -d demo -- make test); agbox logs -f $job`,
		Annotations: map[string]string{ownExitCodes: "exec"},
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef("Name a sandbox and a command.")
			case len(commandOf(args)) == 0:
				return usagef("Name a command to run in %s, for example with `agbox exec %s -- ls -l`.", args[0], args[0])
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.withSignals(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, args)
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&o.detach, "detach", "d", false, "print the id of the command and leave it running")
	f.StringVarP(&o.user, "user", "u", "", "`USER[:GROUP]` to run as; the image's when not given")
	f.StringVarP(&o.dir, "workdir", "w", "", "absolute `DIR` to run in; the image's when not given")
	f.StringVar(&o.name, "name", "", "`NAME` for the command while it runs")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`KEY=VALUE` for the command; KEY alone takes the value from here (repeatable)")
	f.BoolVarP(&o.stdin, "interactive", "i", false, "not available yet")
	f.BoolVarP(&o.tty, "tty", "t", false, "not available yet")
	// Known only to be refused in a sentence.
	_ = f.MarkHidden("interactive")
	_ = f.MarkHidden("tty")
	return cmd
}

// commandOf returns the command in the arguments that follow SANDBOX, which may
// have a "--" before it.
func commandOf(args []string) []string {
	command := args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	return command
}

func (o *execOptions) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	if o.stdin || o.tty {
		return usagef("Standard input and terminals (-i, -t) come with a later version. Give the command its input by file or argument.")
	}
	env, err := a.environment(o.env)
	if err != nil {
		return err
	}
	in := &agboxv1.CreateExecRequest{
		SandboxId: args[0], Command: commandOf(args), Cwd: o.dir, EnvOverrides: env, User: o.user, Name: o.name, ExecId: client.NewID(),
	}
	// SIGPIPE is asked for only so that a closed stdout is an error of the write and not our end.
	signals, stop := a.signals(syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGPIPE)
	defer stop()
	ctx, leave := context.WithCancelCause(ctx)
	s := &session{app: a, client: c, leave: leave, started: make(chan string, 1)}
	s.relayed.Go(func() { s.relay(ctx, signals) })
	defer s.relayed.Wait()
	defer leave(nil)
	err = o.start(ctx, s, in)
	if errors.Is(context.Cause(ctx), errLeft) {
		a.say("Left. The command runs on: `agbox logs -f %s` shows its output, `agbox kill %s` ends it.", in.GetExecId(), in.GetExecId())
		return exitStatus(codeSignal + int(syscall.SIGINT))
	}
	return err
}

func (o *execOptions) start(ctx context.Context, s *session, in *agboxv1.CreateExecRequest) error {
	if !o.detach {
		return s.run(ctx, in)
	}
	out, err := s.client.CreateExec(ctx, in)
	if err != nil {
		return err
	}
	s.started <- out.GetExecId()
	e, err := s.client.GetExec(ctx, out.GetExecId())
	if err != nil {
		return err
	}
	if failure := client.ExecError(e); failure != nil {
		s.app.say("%s", failure)
		return exitStatus(execExitCode(e))
	}
	_, err = fmt.Fprintln(s.app.stdout, out.GetExecId())
	return err
}
