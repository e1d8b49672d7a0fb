package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) inspectCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "inspect REF... [flags]",
		Short: "Show everything about sandboxes or commands",
		Long: `Show everything about sandboxes or commands. REF is an id, the beginning of an id, or
a name; a command can also be named as SANDBOX/NAME. On a terminal, a value that is longer
than a line goes on in the next ones; elsewhere each value is one line.
With -o json the output is always an array; each element has the key sandbox or
the key exec.`,
		Args:              arguments(1, -1, "a SANDBOX or EXEC"),
		ValidArgsFunction: a.completeBoth,
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return inspect(ctx, a, c, args, out)
		}),
	}
	addFormat(cmd, &out.format)
	addTemplate(cmd, &out)
	return cmd
}

func inspect(ctx context.Context, a *app, c *client.Client, refs []string, out output) error {
	var found []proto.Message
	failed := a.each(ctx, refs, func(ref string) error {
		m, err := a.find(ctx, c, ref)
		if err == nil {
			found = append(found, m)
		}
		return err
	})
	if ctx.Err() != nil {
		return failed
	}
	if out.raw() {
		if err := printItems(a, out, found); err != nil {
			return err
		}
		return failed
	}
	for i, m := range found {
		if i > 0 {
			fmt.Fprintln(a.stdout, "---")
		}
		if err := printOutline(a.stdout, m, a.tableOptions(out).Width); err != nil {
			return err
		}
		if box, ok := m.(*agboxv1.GetSandboxResponse); ok {
			a.tellUncovered(ctx, c, box.GetSandbox().GetSandboxId())
		}
	}
	return failed
}

// find looks for a sandbox, then for an exec; SANDBOX/EXEC can only be an exec.
func (a *app) find(ctx context.Context, c *client.Client, ref string) (proto.Message, error) {
	within := strings.Contains(ref, "/")
	if !within {
		id, err := a.sandbox(ctx, c, ref, reads)
		if err == nil {
			return c.GetSandbox(ctx, id)
		}
		if !errors.Is(err, client.ErrNotFound) {
			return nil, err
		}
	}
	id, err := a.resolve(ctx, c, ofExec, ref, reads)
	var e *client.Error
	switch {
	case err == nil:
		exec, err := c.GetExec(ctx, id)
		return &agboxv1.GetExecResponse{Exec: exec}, err
	case !within && errors.Is(err, client.ErrNotFound) && errors.As(err, &e):
		return nil, &client.Error{Code: e.Code, Reason: e.Reason, Metadata: e.Metadata, Message: fmt.Sprintf(
			"No sandbox or command is named %s. `agbox ls` and `agbox ps` list them.", printable(ref))}
	}
	return nil, err
}
