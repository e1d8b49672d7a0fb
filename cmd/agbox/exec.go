package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type execOptions struct {
	detach bool
	user   string
	dir    string
	name   string
	vars   envFlags
	// showSecrets keeps values of secret variables in the output, and so does a file or a pipe
	// to which stdout goes, unless the command is an agent.
	showSecrets, agent bool
	stdin              bool
	tty                bool
	detachKeys         string
	// service is the service in whose container the command runs; empty means the primary.
	service string
	limits  execLimits
	// fleeting is true if the sandbox is removed when agbox ends, except after the detach keys.
	fleeting bool
}

func (a *app) execCommand() *cobra.Command {
	var o execOptions
	var dash int
	cmd := &cobra.Command{
		Use:   "exec [flags] [SANDBOX] [--] COMMAND ARGS...",
		Short: "Run a command and exit with its code",
		Long: `Run a command in a sandbox. With "--" and no SANDBOX before it, it is that of this
folder: all that follows is the command, whatever sandboxes are called. Its stdout and
stderr appear while it runs, and agbox exits with its exit code. Ctrl-C, SIGTERM and
SIGQUIT go to the command. Pressing Ctrl-C three times within two seconds, or a second
SIGTERM, ends only agbox; the command keeps running and "agbox kill" ends it. If the
daemon does not answer within a second, a signal ends agbox. Flags after SANDBOX belong
to the command.

With -i the command reads the standard input of agbox. With -it it runs on a
terminal of its own, connected to yours. Then Ctrl-P Ctrl-Q, a lost connection or
a closed window leaves it running; "agbox attach" reconnects to it.

With --timeout and --idle-timeout the sandbox itself ends the command in time,
even if agbox and the daemon are gone.

Values of secret variables, of the sandbox and of the command, that have 8 bytes or more
are *** in the output with -d, with -t and on a terminal, and in its log. If stdout goes to
a file or a pipe, stdout and stderr are as the command writes them, also in the log, and so
they are everywhere with --show-secrets, and with --service.

With --service the engine runs the command in the container of a service. agbox keeps
nothing of it, and if agbox ends, it may go on until the service stops.`,
		Example: `  agbox exec demo -- ls -l /
  agbox exec -u nobody -w /tmp -e DEBUG=1 demo sh -c 'id; pwd'
  agbox exec -it demo bash
  agbox exec -- make test
  tar c . | agbox exec -i demo tar x -C /work
  agbox exec --service db -it demo psql -U postgres
  agbox exec --timeout 10m --idle-timeout 1m demo -- make test
  job=$(agbox exec -d demo -- make test); agbox logs -f $job`,
		Annotations: map[string]string{ownExitCodes: "exec", endsInText: "yes"},
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash = cmd.ArgsLenAtDash(); {
			case len(args) == 0:
				return usagef("Name a sandbox and a command.")
			case dash != 0 && len(commandOf(args)) == 0:
				return noCommand(args[0])
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	f := cmd.Flags()
	cmd.RunE = a.withSignals(func(ctx context.Context, c *client.Client, args []string) error {
		if err := o.checkService(f); err != nil {
			return err
		}
		if dash == 0 {
			name, err := a.sandboxHere(ctx, c, reads)
			if err != nil {
				return err
			}
			args = append([]string{name, "--"}, args...)
		}
		if o.service != "" {
			return o.inService(ctx, a, c, args[0], commandOf(args))
		}
		return o.run(ctx, a, c, args)
	})
	f.SetInterspersed(false)
	f.BoolVarP(&o.detach, "detach", "d", false, "print the id of the command and run it in the background")
	f.BoolVarP(&o.stdin, "interactive", "i", false, "pass standard input to the command")
	f.BoolVarP(&o.tty, "tty", "t", false, "run the command on a terminal")
	o.addProcessFlags(cmd)
	o.addServiceFlag(f)
	f.BoolVar(&o.showSecrets, "show-secrets", false, "keep values of secret variables in the output and its log")
	o.limits.add(cmd)
	addDetachKeys(cmd, &o.detachKeys)
	return cmd
}

func noCommand(sandbox string) error {
	return usagef("Name a command to run in %s, for example with `agbox exec %[1]s -- ls -l`.", sandbox)
}

// addProcessFlags adds the flags that say as whom and where a command runs.
func (o *execOptions) addProcessFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.user, "user", "u", "", "`USER[:GROUP]` to run as (default: the image's)")
	f.StringVarP(&o.dir, "workdir", "w", "", "absolute `DIR` to run in (default: the image's)")
	f.StringVar(&o.name, "name", "", "`NAME` for the command while it runs")
	o.vars.add(f, "the command")
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
	in, err := o.request(a, args[0], commandOf(args))
	switch {
	case err != nil:
		return err
	case o.stdin && o.tty && !o.detach:
		if in.SandboxId, err = a.sandbox(ctx, c, in.GetSandboxId(), changes); err != nil {
			return err
		}
		return o.onTerminal(ctx, a, c, in)
	}
	// Catch SIGPIPE so that writing to a closed stdout fails instead of killing agbox.
	kinds := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGPIPE}
	if o.tty {
		kinds = append(kinds, syscall.SIGWINCH)
	}
	s := a.newSession(c, in.GetExecId())
	s.runsOn, s.detached = !o.fleeting, o.detach
	return s.inForeground(ctx, kinds, func(ctx context.Context) (err error) {
		in.SandboxId, in.SandboxName = "", args[0] // by its name, which spares a call that resolves it
		if err = o.start(ctx, s, in); s.accepted() || !unclear(err) {
			return err
		}
		in.SandboxName = ""
		if in.SandboxId, err = a.sandbox(ctx, c, args[0], changes); err != nil {
			return err
		}
		return o.start(ctx, s, in)
	})
}

// unclear reports whether an error may be about the name of a sandbox: that it is only the beginning of an id,
// or that the daemon is an older one, which takes ids.
func unclear(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && slices.Contains([]string{
		agboxv1.ErrorReason_SANDBOX_NOT_FOUND.String(), agboxv1.ErrorReason_SANDBOX_AMBIGUOUS.String(), agboxv1.ErrorReason_INVALID_REQUEST.String(),
	}, e.Reason)
}

// request makes the request for the command.
func (o *execOptions) request(a *app, sandbox string, command []string) (*agboxv1.CreateExecRequest, error) {
	env, secret, err := o.vars.read(a)
	if err != nil {
		return nil, err
	}
	in := &agboxv1.CreateExecRequest{
		SandboxId: sandbox, Command: command, Cwd: o.dir, EnvOverrides: env, SecretEnvs: secret, User: o.user, Name: o.name,
		ExecId: client.NewID(), Stdin: o.stdin, Tty: o.tty, ShowSecrets: o.showSecrets || !o.agent && !o.detach && !o.tty && a.stdoutWidth() == 0,
	}
	if err := o.limits.apply(in); err != nil {
		return nil, err
	}
	if !o.tty {
		return in, nil
	}
	if _, given := env["TERM"]; !given {
		if in.EnvOverrides == nil {
			in.EnvOverrides = make(map[string]string)
		}
		in.EnvOverrides["TERM"] = a.terminalName()
	}
	in.TerminalSize = a.outputSize()
	if t := a.terminal(); t != nil && t.size() != nil {
		in.TerminalSize = t.size()
	}
	return in, nil
}

func (o *execOptions) onTerminal(ctx context.Context, a *app, c *client.Client, in *agboxv1.CreateExecRequest) error {
	keys, err := parseDetachKeys(o.detachKeys)
	if err != nil {
		return err
	}
	t := a.terminal()
	if t == nil {
		return errNoTerminal
	}
	f := &console{app: a, client: c, terminal: t, keys: detachFilter{keys: keys}, fleeting: o.fleeting}
	return f.run(ctx, client.AttachOptions{
		Create: in, Input: agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: a.writerName(),
	})
}

func (o *execOptions) start(ctx context.Context, s *session, in *agboxv1.CreateExecRequest) error {
	switch {
	case o.detach:
		return s.createDetached(ctx, in)
	case o.stdin || o.tty:
		return s.attach(ctx, client.AttachOptions{
			Create: in, Input: agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: s.app.writerName(),
		}, o.stdin)
	}
	return s.copy(ctx, s.client.RunLogs(ctx, in))
}

// createDetached starts a command, prints its id and leaves it alone.
func (s *session) createDetached(ctx context.Context, in *agboxv1.CreateExecRequest) error {
	if _, err := s.client.CreateExec(ctx, in); err != nil {
		return err
	}
	s.start()
	e, err := s.client.GetExec(ctx, s.id)
	if err == nil && client.ExecError(e) != nil {
		s.app.say("%s", client.ExecError(e))
		return exitStatus(execExitCode(e))
	}
	// The command was accepted, so print its id even if GetExec failed.
	_, printErr := fmt.Fprintln(s.app.stdout, s.id)
	if err != nil && ctx.Err() == nil {
		s.app.say("The command was accepted, but agboxd does not say whether it could be started.")
		return err
	}
	return printErr
}

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
		return errNoTerminal
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
	switch stopped := signalled(ctx); {
	case stopped != nil:
		a.say("The command in service %s may go on until the service stops: agbox does not own it.", o.service)
		return stopped
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

func (a *app) shellCommand() *cobra.Command {
	o := execOptions{stdin: true, tty: true}
	cmd := &cobra.Command{
		Use:   "shell [SANDBOX] [flags]",
		Short: "Open a shell on this terminal",
		Long: `Open a shell in a sandbox, or in that of this folder, on a terminal connected to yours:
the login shell of the user if the image has it, else bash, zsh, ash or sh. It is a
command like any other: Ctrl-P Ctrl-Q leaves it running, and "agbox attach" reconnects
to it.

With --service it is a shell in the container of a service, of which agbox keeps
nothing: it cannot be left and attached again.`,
		Example: `  agbox shell demo
  agbox shell demo --service db
  agbox shell demo --user root`,
		Annotations:       map[string]string{ownExitCodes: "shell"},
		Args:              arguments(0, 1, "one SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.RunE = a.withSignals(func(ctx context.Context, c *client.Client, args []string) error {
		if err := o.checkService(cmd.Flags()); err != nil {
			return err
		}
		args, err := a.orHere(ctx, c, args, reads)
		if err != nil {
			return err
		}
		return o.shell(ctx, a, c, args[0])
	})
	o.addProcessFlags(cmd)
	o.addServiceFlag(cmd.Flags())
	addDetachKeys(cmd, &o.detachKeys)
	return cmd
}

func (o *execOptions) shell(ctx context.Context, a *app, c *client.Client, sandbox string) error {
	if a.terminal() == nil {
		return usagef("A shell needs a terminal, but standard input is not one. To run commands from a file or a pipe, use `agbox exec -i %s sh`.", sandbox)
	}
	if o.service != "" {
		return o.inService(ctx, a, c, sandbox, []string{"sh", "-c", serviceShellScript})
	}
	id, err := a.sandbox(ctx, c, sandbox, changes)
	if err != nil {
		return err
	}
	path, err := o.findShell(ctx, c, id)
	if err != nil {
		return err
	}
	in, err := o.request(a, id, []string{path})
	if err != nil {
		return err
	}
	return o.onTerminal(ctx, a, c, in)
}

// findShellScript prints the path of the best shell for the user who runs it.
const findShellScript = `me=$(id -u 2>/dev/null) || me=0
login=
while IFS=: read -r _ _ uid _ _ _ shell; do
	if [ "$uid" = "$me" ]; then login=$shell; break; fi
done 2>/dev/null </etc/passwd
case $login in */nologin|*/false|*/true|*/sync) login= ;; esac
for shell in "$login" bash zsh ash sh; do
	path=$(command -v "$shell" 2>/dev/null) && [ -x "$path" ] && { printf %s "$path"; exit 0; }
done
printf %s "$0"`

// serviceShellScript becomes the best shell of a service.
const serviceShellScript = `for shell in bash zsh ash; do command -v $shell >/dev/null 2>&1 && exec $shell -l; done; exec sh -l`

// shells are tried in turn until one can run findShellScript.
var shells = []string{"sh", "bash", "zsh", "ash"}

// findShell runs findShellScript in the sandbox.
func (o *execOptions) findShell(ctx context.Context, c *client.Client, sandbox string) (string, error) {
	for _, shell := range shells {
		var found bytes.Buffer
		_, err := c.Run(ctx, &agboxv1.CreateExecRequest{
			SandboxId: sandbox, User: o.user, Command: []string{shell, "-c", findShellScript, shell},
		}, &found, io.Discard)
		switch {
		case hasReason(err, agboxv1.ErrorReason_COMMAND_NOT_FOUND), hasReason(err, agboxv1.ErrorReason_COMMAND_NOT_EXECUTABLE):
			continue
		case err != nil:
			return "", err
		case !strings.HasPrefix(found.String(), "/"):
			return shell, nil
		}
		return found.String(), nil
	}
	return "", &client.Error{Code: codes.NotFound, Message: "The image of sandbox " + sandbox +
		" has no shell. Run its programs with `agbox exec`, or add a shell with a mount or another image."}
}
