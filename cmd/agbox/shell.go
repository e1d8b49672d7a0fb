package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
		var e *client.Error
		missing := errors.As(err, &e) && (e.Reason == agboxv1.ErrorReason_COMMAND_NOT_FOUND.String() ||
			e.Reason == agboxv1.ErrorReason_COMMAND_NOT_EXECUTABLE.String())
		switch {
		case missing:
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
