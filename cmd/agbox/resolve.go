package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// purpose is what a command does with what a person has named.
type purpose bool

const (
	reads   purpose = false
	changes purpose = true
)

const (
	ofSandbox = agboxv1.RefKind_REF_KIND_SANDBOX
	ofExec    = agboxv1.RefKind_REF_KIND_EXEC
	ofAgent   = agboxv1.RefKind_REF_KIND_AGENT
)

// sandbox returns the id of the sandbox that a text means.
func (a *app) sandbox(ctx context.Context, c *client.Client, text string, to purpose) (string, error) {
	return a.resolve(ctx, c, ofSandbox, text, to)
}

// agent returns the id of the agent that a text means.
func (a *app) agent(ctx context.Context, c *client.Client, text string, to purpose) (string, error) {
	return a.resolve(ctx, c, ofAgent, text, to)
}

// eachAgent is each for agents, which do gets by their ids.
func (a *app) eachAgent(ctx context.Context, c *client.Client, refs []string, to purpose, do func(id string) error) error {
	return a.each(ctx, refs, func(ref string) error {
		id, err := a.agent(ctx, c, ref, to)
		if err != nil {
			return err
		}
		return do(id)
	})
}

// withAgent is with for a command on the AGENT that is its first argument.
func (a *app) withAgent(do func(ctx context.Context, c *client.Client, id string) error) func(*cobra.Command, []string) error {
	return a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := a.agent(ctx, c, args[0], reads)
		if err != nil {
			return err
		}
		return do(ctx, c, id)
	})
}

// resolved returns the ids that texts mean. An empty text stays empty.
func (a *app) resolved(ctx context.Context, c *client.Client, kind agboxv1.RefKind, texts []string, to purpose) ([]string, error) {
	ids := make([]string, len(texts))
	for i, text := range texts {
		if text == "" {
			continue
		}
		var err error
		if ids[i], err = a.resolve(ctx, c, kind, text, to); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (a *app) resolve(ctx context.Context, c *client.Client, kind agboxv1.RefKind, text string, to purpose) (string, error) {
	out, err := c.Candidates(ctx, kind, text)
	if err != nil {
		return "", err
	}
	return a.choose(kind, text, out, to)
}

// choose returns the id that a text means. What has the text as its id is always what a
// command reads. A command that changes something takes the beginning of an id only if a
// person types and sees which one it is.
func (a *app) choose(kind agboxv1.RefKind, text string, out *agboxv1.ResolveResponse, to purpose) (string, error) {
	if list := out.GetReferents(); to == reads && len(list) > 0 && list[0].GetMatch() == agboxv1.RefMatch_REF_MATCH_ID {
		return list[0].GetId(), nil
	}
	watched := a.terminal() != nil && a.width() > 0
	r, err := client.Only(kind, text, out)
	if err != nil && !watched && !slices.ContainsFunc(out.GetReferents(), func(r *agboxv1.Referent) bool { return r.GetMatch() != agboxv1.RefMatch_REF_MATCH_PREFIX }) {
		err = beginning{err, text}
	}
	if err != nil || to == reads || whole(r) {
		return r.GetId(), err
	}
	is := fmt.Sprintf("%s is the beginning of an id, that of %s", printable(text), described(kind, r))
	if r.GetMatch() == agboxv1.RefMatch_REF_MATCH_NEWEST {
		is = fmt.Sprintf("Several that have ended are called %s, and the newest is %s", printable(text), described(kind, r))
	}
	if !watched {
		err = &client.Error{Code: codes.InvalidArgument, Reason: agboxv1.ErrorReason_INVALID_REQUEST.String(), Message: fmt.Sprintf(
			"%s. Without a terminal, a command that changes something takes only a whole id or a name: give %s.", is, r.GetId())}
		if r.GetMatch() == agboxv1.RefMatch_REF_MATCH_PREFIX {
			err = beginning{err, text}
		}
		return "", err
	}
	a.say("%s.", is)
	return r.GetId(), nil
}

// beginning is the error for a text that is no id and no name, and only begins ids.
type beginning struct {
	error
	text string
}

func (b beginning) Unwrap() error { return b.error }

// whole reports whether a text was the id or the name of what it means.
func whole(r *agboxv1.Referent) bool {
	return r.GetMatch() == agboxv1.RefMatch_REF_MATCH_ID || r.GetMatch() == agboxv1.RefMatch_REF_MATCH_NAME
}

func described(kind agboxv1.RefKind, r *agboxv1.Referent) string {
	text := map[agboxv1.RefKind]string{ofSandbox: "sandbox ", ofExec: "command ", ofAgent: "agent "}[kind] + r.GetId()
	if r.GetName() != "" {
		text += " (" + printable(r.GetName()) + ")"
	}
	return text
}

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
		sandboxes := collect(boxes, func(h *agboxv1.SandboxHandle) string { return printable(nameOf(h)) })
		commands := collect(running, func(e *agboxv1.ExecStatus) string { return printable(cmp.Or(e.GetName(), e.GetExecId())) })
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
			Message: fmt.Sprintf("Sandbox %s %s.", nameOf(box), none)}
	}
	return newest, nil
}

var (
	// running are the states of a sandbox that can be stopped.
	running = []agboxv1.SandboxState{agboxv1.SandboxState_SANDBOX_STATE_PENDING, agboxv1.SandboxState_SANDBOX_STATE_READY}
	// resting are the states of a sandbox in which nothing runs.
	resting = []agboxv1.SandboxState{agboxv1.SandboxState_SANDBOX_STATE_STOPPED, agboxv1.SandboxState_SANDBOX_STATE_FAILED}
)

// sandboxesOrAll takes sandboxes, or none with --all.
func sandboxesOrAll(all *bool) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if *all && len(args) > 0 {
			return usagef("--all means every sandbox: omit %q.", args[0])
		}
		return nil
	}
}

// sandboxesIn returns the ids of the sandboxes in one of the states.
func sandboxesIn(ctx context.Context, c *client.Client, states ...agboxv1.SandboxState) ([]string, error) {
	list, err := c.ListSandboxes(ctx, client.ListOptions{})
	var ids []string
	for _, h := range list {
		if slices.Contains(states, h.GetState()) {
			ids = append(ids, h.GetSandboxId())
		}
	}
	return ids, err
}
