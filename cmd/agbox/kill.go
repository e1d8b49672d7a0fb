package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type killOptions struct {
	signal string
	grace  time.Duration
}

func (a *app) killCommand() *cobra.Command {
	var o killOptions
	cmd := &cobra.Command{
		Use:   "kill [-s SIGNAL | -SIGNAL] EXEC|SANDBOX... [flags]",
		Short: "End a command, or send it a signal",
		Long: `End commands: SIGTERM goes to the process group. After the grace period, SIGKILL
goes to every remaining process that the command has started, also outside its
process group. The sandbox does this by itself and agbox does not wait for it;
"agbox logs -f EXEC" does. A command that has already ended is not an error. With
-s, or as in "kill -9", only that one signal is sent.

EXEC is an id or a name, alone or as SANDBOX/NAME; on a terminal, the beginning of
an id too.
SANDBOX/main is the sandbox's own command. SANDBOX alone stands for the newest
command that runs in it.`,
		Example: `  agbox kill demo/main
  agbox kill -s INT $job
  agbox kill -9 $job`,
		Args:              arguments(1, -1, "an EXEC or a SANDBOX"),
		ValidArgsFunction: a.completeExecsFirst(-1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, args)
		}),
	}
	cmd.Flags().StringVarP(&o.signal, "signal", "s", "", "`SIGNAL` by name or number, for example INT")
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("signal", cobra.FixedCompletions(usualSignals, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().DurationVar(&o.grace, "grace", client.DefaultGrace, "`TIME` between SIGTERM and SIGKILL, for example 10s (default 5s)")
	// The daemon has the default. pflag shows no default for 0s.
	cmd.Flags().Lookup("grace").DefValue = "0s"
	return cmd
}

func (o *killOptions) run(ctx context.Context, a *app, c *client.Client, refs []string) error {
	switch {
	case o.signal != "" && o.grace >= 0:
		return usagef("-s sends a single signal, so --grace has no effect: omit one of them.")
	case o.grace != client.DefaultGrace && o.grace < 0:
		return usagef("--grace %s is negative: use 0s for SIGKILL at once.", o.grace)
	case o.signal == "":
		return a.each(ctx, refs, func(ref string) error { return o.end(ctx, a, c, ref) })
	}
	sig, err := parseSignal(o.signal)
	if err != nil {
		return err
	}
	return a.each(ctx, refs, func(ref string) error {
		e, err := a.namedExec(ctx, c, ref, true, changes)
		if err != nil {
			return err
		}
		return c.SignalExec(ctx, e.GetExecId(), sig)
	})
}

// end ends a command. It is not an error if the command has already ended.
func (o *killOptions) end(ctx context.Context, a *app, c *client.Client, ref string) error {
	e, err := a.namedExec(ctx, c, ref, true, changes)
	if err != nil {
		return err
	}
	err = c.CancelExec(ctx, e.GetExecId(), o.grace)
	var failure *client.Error
	if errors.As(err, &failure) && failure.Reason == agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL.String() {
		a.say("%s", failure.Message)
		return nil
	}
	return err
}

// usualSignals are the signals that shell completion offers.
var usualSignals = []string{"HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "WINCH"}

// parseSignal takes INT, SIGINT, int and 2.
func parseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= 64 {
		return syscall.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, usagef("There is no signal %s. Use a name such as INT or a number from 1 to 64.", text)
}
