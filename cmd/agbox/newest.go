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
func (a *app) namedExec(ctx context.Context, c *client.Client, ref string, running bool, to purpose) (*agboxv1.ExecStatus, error) {
	execs, err := c.Candidates(ctx, ofExec, ref)
	within := strings.Contains(ref, "/")
	if err != nil && (within || !errors.Is(err, client.ErrNotFound)) {
		return nil, err
	}
	if list := execs.GetReferents(); !within && (len(list) == 0 || !whole(list[0])) {
		boxes, none := c.Candidates(ctx, ofSandbox, ref)
		switch {
		case none != nil && !errors.Is(none, client.ErrNotFound):
			return nil, none
		case none == nil && (len(list) == 0 || whole(boxes.GetReferents()[0])):
			return a.newestIn(ctx, c, ref, boxes, running, to)
		case none != nil && len(list) == 0:
			return nil, noSuch(ctx, c, ref)
		}
	}
	if err != nil {
		return nil, err
	}
	id, err := a.choose(ofExec, ref, execs, to)
	if err != nil {
		return nil, err
	}
	return c.GetExec(ctx, id)
}

// shownNames is how many names of what exists an error lists.
const shownNames = 5

// noSuch is the error for a text that is neither a command nor a sandbox. It says what there is.
func noSuch(ctx context.Context, c *client.Client, ref string) error {
	text := fmt.Sprintf("There is neither a command nor a sandbox %s.", printable(ref))
	boxes, err := c.ListSandboxes(ctx, client.ListOptions{})
	running, failed := c.ListActiveExecs(ctx, "")
	if err == nil && failed == nil { // otherwise the first sentence has to do
		var sandboxes, commands []string
		for _, h := range boxes {
			sandboxes = append(sandboxes, printable(firstOf(h.GetName(), h.GetSandboxId())))
		}
		for _, e := range running {
			commands = append(commands, printable(firstOf(e.GetName(), e.GetExecId())))
		}
		text += fmt.Sprintf(" Sandboxes (`agbox ls`): %s. Running commands (`agbox ps`, with -a also ended ones): %s.", listed(sandboxes), listed(commands))
	}
	return &client.Error{Code: codes.NotFound, Reason: agboxv1.ErrorReason_EXEC_NOT_FOUND.String(), Message: text}
}

// listed lists some names, and counts the others.
func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	text := strings.Join(names[:min(len(names), shownNames)], ", ")
	if more := len(names) - shownNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// newestIn returns the newest command of the sandbox that ref names, and says so.
func (a *app) newestIn(ctx context.Context, c *client.Client, ref string, boxes *agboxv1.ResolveResponse, running bool, to purpose) (*agboxv1.ExecStatus, error) {
	id, err := a.choose(ofSandbox, ref, boxes, to)
	if err != nil {
		return nil, err
	}
	out, err := c.GetSandbox(ctx, id)
	if err != nil {
		return nil, err
	}
	e, err := newestExec(ctx, c, out.GetSandbox(), running)
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
