package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// acceptBound is how long the daemon may take to accept a sandbox, or its removal.
	// Unless a signal comes the request is not cancelled before, so that its fate is known.
	acceptBound = 15 * time.Second
	// hurriedBound is acceptBound for a removal after a signal.
	hurriedBound = 5 * time.Second
	// cleanUpBound is how long the removal of a failed or interrupted sandbox may take.
	cleanUpBound = time.Minute
)

type createOptions struct {
	specOptions
	id         string
	noWait     bool
	keepFailed bool
}

func (a *app) createCommand() *cobra.Command {
	var o createOptions
	var command []string
	cmd := &cobra.Command{
		Use:   "create [NAME] [flags] [-- COMMAND ARGS...]",
		Short: "Make a sandbox and wait until it is ready",
		Long: `Make a sandbox and wait until commands can run in it. Its id alone goes to
stdout, the progress to stderr. A sandbox that does not become ready is removed
again.

The sandbox is described by a file, by flags, or by both: agbox.yaml in this
folder is used unless --image is given, -f names another. Flags come over the
file: single values replace, maps merge by key, lists append. COMMAND, which is
a list too, runs beside the supervisor instead of the main command of the image.
` + "`agbox init` writes a file to begin with; docs/spec.md explains all of it." + `
`,
		Example: `  agbox create demo --image debian:12 --label team=red --env CI=1 --idle-ttl 2h
  agbox create -f agbox.yaml --memory 4g --cpus 2 -p 8080:80
  agbox create --compose compose.yaml --compose-primary web --workspace .`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args, command = args[:dash], args[dash:]
			}
			return arguments(0, 1, "one NAME")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		input, err := orLeave(ctx, func() (*client.SpecInput, error) {
			return o.request(a, args[:len(args)-len(command)], command)
		})
		if err != nil {
			return err
		}
		return o.run(ctx, a, c, input)
	})
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "choose the `ID`, so that the command can be repeated safely")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the sandbox is accepted")
	f.BoolVar(&o.keepFailed, "keep-failed", false, "keep a sandbox that fails, to look at it")
	return cmd
}

// request makes the request for a sandbox that has an id.
func (o *createOptions) request(a *app, args, command []string) (*client.SpecInput, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	input, err := o.sandboxRequest(a, name, command)
	if err != nil {
		return nil, err
	}
	if input.Request.SandboxId = o.id; input.Request.SandboxId == "" {
		input.Request.SandboxId = client.NewID()
	}
	return input, nil
}

// run makes the sandbox and prints its id.
func (o *createOptions) run(ctx context.Context, a *app, c *client.Client, input *client.SpecInput) error {
	id, err := o.create(ctx, a, c, input)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, id)
	return err
}

// create makes the sandbox and returns its id.
func (o *createOptions) create(ctx context.Context, a *app, c *client.Client, input *client.SpecInput) (string, error) {
	in := input.Request
	// May start a daemon and take long, so a signal ends it at once, and the request a moment later.
	if err := c.Connect(ctx); err != nil {
		return "", err
	}
	if hasFiles(in) || len(in.GetCreateSpec().GetBuiltinTools()) > 0 {
		// For what a file says that has no meaning here, what a tool lacks, and all problems at once.
		out, err := a.resolved(ctx, c, in)
		if err != nil {
			return "", err
		}
		if hasFiles(in) && out.GetHostRequests() == nil {
			return "", errOldDaemon
		}
		if err := o.agree(ctx, a, input, out.GetHostRequests()); err != nil {
			return "", err
		}
	}
	h, err := accepted(ctx, acceptBound, func(ctx context.Context) (*agboxv1.SandboxHandle, error) { return c.CreateSandbox(ctx, in) })
	if err != nil {
		if errors.Is(err, client.ErrDaemonUnreachable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			a.say("It is not known whether sandbox %s was accepted: `agbox inspect %s` tells, `agbox rm -f %[1]s` removes it.", in.GetSandboxId(), in.GetSandboxId())
		}
		return "", err
	}
	id := h.GetSandboxId()
	if !o.noWait {
		if err := o.wait(ctx, a, c, h); err != nil {
			return "", err
		}
	}
	return id, nil
}

// accepted makes a request that leaves something behind, within a bound. The end of
// ctx ends it only after answerGrace.
func accepted[T any](ctx context.Context, bound time.Duration, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := outlasting(ctx, answerGrace)
	defer cancel()
	ctx, giveUp := context.WithTimeout(ctx, bound)
	defer giveUp()
	return request(ctx)
}

// wait waits until the sandbox is ready and removes one that fails, or is interrupted.
func (o *createOptions) wait(ctx context.Context, a *app, c *client.Client, h *agboxv1.SandboxHandle) error {
	id := h.GetSandboxId()
	p := &progress{app: a}
	_, err := c.WaitReady(ctx, id, client.OnEvent(h.GetLastEventSequence(), p.show))
	p.clear()
	// A sandbox that was made by an earlier command with the same --id is not ours to remove.
	ours := o.id == "" || h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_PENDING
	var failure *client.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && ours:
		a.say("Interrupted: sandbox %s is being removed.", id)
		o.remove(ctx, a, c, id)
		return err
	case ours && errors.As(err, &failure) && failure.Metadata["sandbox_id"] == id && !errors.Is(err, client.ErrWrongState):
		a.say("%s", err)
		if o.keepFailed {
			a.say("The failed sandbox is kept: `agbox inspect %s` shows it, `agbox rm %s` removes it.", id, id)
		} else {
			o.remove(ctx, a, c, id)
		}
		return toldError{err}
	}
	a.say("Sandbox %s may be there: `agbox inspect %s` tells, `agbox rm %s` removes it.", id, id, id)
	return err
}

// remove removes a failed or interrupted sandbox.
func (o *createOptions) remove(ctx context.Context, a *app, c *client.Client, id string) {
	if a.removeSandbox(ctx, c, id) {
		a.say("Sandbox %s was removed; nothing is left of it.", id)
	}
}

// removeSandbox removes a sandbox and waits for that, also when a signal has ended
// ctx. Another signal ends the wait. It says what it could not do, and tells whether
// the sandbox is gone.
func (a *app) removeSandbox(ctx context.Context, c *client.Client, id string) (gone bool) {
	bound := acceptBound
	if ctx.Err() != nil {
		bound = hurriedBound
		var done func()
		ctx, done = a.interruptible(context.WithoutCancel(ctx))
		defer done()
	}
	_, err := accepted(ctx, bound, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.DeleteSandbox(ctx, id) })
	switch {
	case errors.Is(err, client.ErrNotFound):
		return true
	case err != nil:
		a.say("Sandbox %s could not be removed (%v) `agbox rm -f %[1]s` tries again.", id, err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, cleanUpBound)
	defer cancel()
	if err := c.WaitDeleted(ctx, id); err != nil {
		a.say("Sandbox %s is still being removed (%v) `agbox rm -f %[1]s` waits for the end.", id, err)
		return false
	}
	return true
}
