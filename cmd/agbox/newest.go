package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// namedExec returns the exec that ref names. If ref is a sandbox instead, it is the
// sandbox's newest command, of those that run if running is set; that is said on stderr.
// An exec with exactly this id or name takes precedence over a sandbox, a sandbox with
// exactly this id or name over the beginning of an exec's id.
func (a *app) namedExec(ctx context.Context, c *client.Client, ref string, running bool) (*agboxv1.ExecStatus, error) {
	e, err := c.GetExec(ctx, ref)
	switch {
	case err == nil && (strings.Contains(ref, "/") || e.GetExecId() == ref || e.GetName() == ref):
		return e, nil
	case err != nil && (strings.Contains(ref, "/") || !errors.Is(err, client.ErrNotFound) && !ambiguous(err)):
		return nil, err
	}
	out, errBox := c.GetSandbox(ctx, ref)
	box := out.GetSandbox()
	if errBox != nil || err == nil && box.GetName() != ref && box.GetSandboxId() != ref {
		return e, err
	}
	e, err = newestExec(ctx, c, box, running)
	if err != nil {
		return nil, err
	}
	of := "Its newest command"
	if running {
		of = "Its newest running command"
	}
	a.say("%s is a sandbox. %s is %s: %s", ref, of, e.GetExecId(), cut(shellWords(e.GetCommand()), commandWidth))
	return e, nil
}

func ambiguous(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Reason == agboxv1.ErrorReason_EXEC_AMBIGUOUS.String()
}

// newestExec returns the exec of a sandbox that was started last.
func newestExec(ctx context.Context, c *client.Client, box *agboxv1.SandboxHandle, running bool) (*agboxv1.ExecStatus, error) {
	none := "has run no command"
	var newest *agboxv1.ExecStatus
	keep := func(e *agboxv1.ExecStatus) {
		if newest == nil || e.GetStartedAt().AsTime().After(newest.GetStartedAt().AsTime()) {
			newest = e
		}
	}
	if running {
		none = "runs no command. `agbox shell` opens a shell in it, `agbox stop` stops it"
		list, err := c.ListActiveExecs(ctx, box.GetSandboxId())
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			keep(e)
		}
	} else {
		for e, err := range c.ListExecs(ctx, box.GetSandboxId()) {
			if err != nil {
				return nil, err
			}
			keep(e)
		}
	}
	if newest == nil {
		return nil, &client.Error{Code: codes.NotFound, Reason: agboxv1.ErrorReason_EXEC_NOT_FOUND.String(),
			Message: fmt.Sprintf("Sandbox %s %s.", firstOf(box.GetName(), box.GetSandboxId()), none)}
	}
	return newest, nil
}
