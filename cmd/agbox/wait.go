package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) waitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait {EXEC | SANDBOX}...",
		Short: "Wait until commands have ended and print their exit codes",
		Long: `Wait until commands have ended, and print the exit code of each on a line of its own.
A command that has already ended is not an error. SANDBOX means its newest command.
agbox itself exits with 0 if all exit codes are known.`,
		Example: `  job=$(agbox exec -d demo -- make test); agbox wait $job
  agbox wait demo/build demo/test`,
		Args:              arguments(1, -1, "an EXEC"),
		ValidArgsFunction: a.completeBoth,
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, args, func(ref string) error { return a.waitFor(ctx, c, ref) })
		}),
	}
}

// waitFor waits for a command and prints its exit code.
func (a *app) waitFor(ctx context.Context, c *client.Client, ref string) error {
	e, err := a.namedExec(ctx, c, ref, false, reads)
	if err != nil {
		return err
	}
	ended, err := untilEnd(ctx, c, e.GetExecId())
	if err != nil {
		return err
	}
	code := execExitCode(ended)
	if _, err := fmt.Fprintln(a.stdout, code); err != nil {
		return err
	}
	failed := client.ExecError(ended)
	if failed != nil && code != codeExecAgbox { // such as 127: the exit code is known
		a.say("%s", failed)
		return nil
	}
	return failed
}

// untilEnd returns an exec once it has ended. It reads none of the earlier output.
func untilEnd(ctx context.Context, c *client.Client, id string) (*agboxv1.ExecStatus, error) {
	none := uint64(0)
	for item, err := range c.FollowLogs(ctx, id, client.LogOptions{Follow: true, TailLines: &none}) {
		if err != nil {
			return nil, err
		}
		if item.End != nil {
			return item.End.GetExec(), nil
		}
	}
	return nil, &client.Error{Code: codes.Internal, Message: "The output ended without an exit status."}
}
