package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// acceptBound is how long the daemon may take to accept a sandbox. The
	// request is not given up before, so that its fate is known.
	acceptBound = 15 * time.Second
	// cleanUpBound is how long the removal of a sandbox that came to nothing may take.
	cleanUpBound = time.Minute
)

type createOptions struct {
	image      string
	id         string
	labels     []string
	env        []string
	idleTTL    time.Duration
	revival    string
	noWait     bool
	keepFailed bool
}

func (a *app) createCommand() *cobra.Command {
	var o createOptions
	var command []string
	cmd := &cobra.Command{
		Use:   "create [NAME] --image IMAGE [flags] [-- COMMAND ARGS...]",
		Short: "Make a sandbox and wait until it is ready",
		Long: `Make a sandbox from an image and wait until commands can run in it. Its id
alone goes to stdout, the progress to stderr. A sandbox that does not become
ready is removed again. COMMAND runs beside the supervisor instead of the main
command of the image.`,
		Example: `  agbox create demo --image debian:12 --label team=red --env CI=1 --idle-ttl 2h`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args, command = args[:dash], args[dash:]
			}
			return arguments(0, 1, "one NAME")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		in, err := o.request(a, args[:len(args)-len(command)], command)
		if err != nil {
			return err
		}
		return o.run(ctx, a, c, in)
	})
	f := cmd.Flags()
	f.StringVar(&o.image, "image", "", "`IMAGE` of the sandbox; one that is not here is pulled")
	f.StringVar(&o.id, "id", "", "choose the `ID`, so that the command can be repeated safely")
	f.StringArrayVar(&o.labels, "label", nil, "`KEY=VALUE` to select the sandbox by (repeatable)")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`KEY=VALUE` for all commands; KEY alone takes the value from here (repeatable)")
	f.DurationVar(&o.idleTTL, "idle-ttl", 0, "stop the sandbox when no command has run for this `DURATION`, for example 2h")
	f.StringVar(&o.revival, "revival", "", "`WHAT` to do when the sandbox's container ends by itself: fail, revive or reap (default: as the daemon is set)")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the sandbox is accepted")
	f.BoolVar(&o.keepFailed, "keep-failed", false, "keep a sandbox that fails, to look at it")
	return cmd
}

func (o *createOptions) request(a *app, args, command []string) (*agboxv1.CreateSandboxRequest, error) {
	if o.image == "" {
		return nil, usagef("Name an image, for example --image debian:12.")
	}
	if o.idleTTL < 0 {
		return nil, usagef("--idle-ttl %v is below zero.", o.idleTTL)
	}
	revival, err := revivalPolicy(o.revival)
	if err != nil {
		return nil, err
	}
	labels, err := assignments("label", o.labels)
	if err != nil {
		return nil, err
	}
	env, err := a.environment(o.env)
	if err != nil {
		return nil, err
	}
	in := &agboxv1.CreateSandboxRequest{
		SandboxId:  o.id,
		CreateSpec: &agboxv1.CreateSpec{Image: o.image, Labels: labels, Envs: env, Command: command, Revival: revival},
	}
	if in.SandboxId == "" {
		in.SandboxId = client.NewID()
	}
	if o.idleTTL > 0 {
		in.CreateSpec.IdleTtl = durationpb.New(o.idleTTL)
	}
	if len(args) > 0 {
		in.CreateSpec.Name = args[0]
	}
	return in, nil
}

// revivalPolicy reads the word for a policy; none leaves it to the daemon.
func revivalPolicy(word string) (agboxv1.RevivalPolicy, error) {
	const prefix = "REVIVAL_POLICY_"
	number, known := agboxv1.RevivalPolicy_value[prefix+strings.ToUpper(word)]
	if word != "" && (!known || number == 0) {
		return 0, usagef("--revival %q is not fail, revive or reap.", word)
	}
	return agboxv1.RevivalPolicy(number), nil
}

func (o *createOptions) run(ctx context.Context, a *app, c *client.Client, in *agboxv1.CreateSandboxRequest) error {
	// May start a daemon and take long, so it can be interrupted; the request can not.
	if err := c.Connect(ctx); err != nil {
		return err
	}
	accept, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptBound)
	defer cancel()
	h, err := c.CreateSandbox(accept, in)
	if err != nil {
		if errors.Is(err, client.ErrDaemonUnreachable) || errors.Is(err, context.DeadlineExceeded) {
			a.say("It is not known whether sandbox %s was accepted: `agbox inspect %s` tells, `agbox rm -f %[1]s` removes it.", in.GetSandboxId(), in.GetSandboxId())
		}
		return err
	}
	id := h.GetSandboxId()
	if !o.noWait {
		if err := o.wait(ctx, a, c, h); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(a.stdout, id)
	return err
}

// wait waits until the sandbox is ready and removes one that came to nothing.
func (o *createOptions) wait(ctx context.Context, a *app, c *client.Client, h *agboxv1.SandboxHandle) error {
	id := h.GetSandboxId()
	p := &progress{app: a}
	_, err := c.WaitReady(ctx, id, client.OnEvent(h.GetLastEventSequence(), p.show))
	p.clear()
	// A sandbox that was made by an earlier command with the same --id is not ours to remove.
	ours := h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_PENDING
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
		return exitStatus(exitCode(err))
	}
	a.say("Sandbox %s may be there: `agbox inspect %s` tells, `agbox rm %s` removes it.", id, id, id)
	return err
}

// remove deletes a sandbox that came to nothing, also when ctx has ended.
func (o *createOptions) remove(ctx context.Context, a *app, c *client.Client, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpBound)
	defer cancel()
	err := c.DeleteSandbox(ctx, id)
	if err == nil {
		err = c.WaitDeleted(ctx, id)
	}
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		a.say("Sandbox %s could not be removed (%v) `agbox rm %s` tries again.", id, err, id)
		return
	}
	a.say("Sandbox %s was removed; nothing is left of it.", id)
}
