package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

// app is one run of the program. Everything it needs of its process comes in
// through the fields, so that tests run it as it is.
type app struct {
	// stdin is nil where there is none.
	stdin  *os.File
	stdout io.Writer
	stderr io.Writer
	// width of the terminal behind stderr; 0 when stderr is no terminal.
	width     func() int
	now       func() time.Time
	lookupEnv func(string) (string, bool)
	// replace becomes another program, as syscall.Exec does.
	replace func(path string, argv, env []string) error
	// signals subscribes to signals; the function returned ends that. What one
	// subscription has left in the channel the next one finds there.
	signals func(...os.Signal) (<-chan os.Signal, func())
	// restore gives signals their default action back, whoever has subscribed to them.
	restore func(...os.Signal)

	// Global flags.
	socket      string
	noAutostart bool

	// began is set once a command's own work starts: errors before that are
	// errors of usage.
	began bool
}

// run executes the command line and returns the exit code of the process.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return codeOK
	}
	code := a.report(cmd, err)
	if cmd.Annotations[ownExitCodes] != "" && !errors.As(err, new(exitStatus)) {
		return codeExecAgbox
	}
	return code
}

// report tells the reader of an error and returns its exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	if errors.Is(err, errSpecTold) {
		return codeUsage
	}
	var told toldError
	if errors.As(err, &told) {
		return exitCode(told.cause)
	}
	var usage *usageError
	if !a.began && !errors.As(err, &usage) {
		usage = &usageError{text: strings.TrimSuffix(err.Error(), ".") + "."}
	}
	if usage != nil {
		a.sayEach(usage.text)
		a.say("`%s --help` says how it is used.", cmd.CommandPath())
		return codeUsage
	}
	a.sayEach(err.Error())
	return exitCode(err)
}

// say writes one sentence to the reader. What a sandbox has put into it, such as
// the message of a failure, does not steer the terminal.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "agbox: %s\n", printableLines(fmt.Sprintf(format, args...)))
}

// sayEach writes lines as sentences of their own.
func (a *app) sayEach(lines string) {
	for line := range strings.SplitSeq(lines, "\n") {
		a.say("%s", line)
	}
}

// exitStatus ends the program with a code; whatever there is to say was said.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// errSpecTold is a description of a sandbox that is not valid; why was said. It is
// agbox's own failure, and not the exit code of a command that never ran.
var errSpecTold = errors.New("the description of the sandbox is not valid")

// toldError is a failure of agbox's own of which all was said. Unlike an exitStatus it
// is not the exit code of a command.
type toldError struct{ cause error }

func (e toldError) Error() string { return e.cause.Error() }
func (e toldError) Unwrap() error { return e.cause }

// usageError is a command line that cannot be meant.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// work is what a command does once it has a client.
type work func(ctx context.Context, c *client.Client, args []string) error

// with makes the RunE of a command that speaks with the daemon and is ended by
// Ctrl-C.
func (a *app) with(do work) func(*cobra.Command, []string) error {
	return a.withSignals(func(ctx context.Context, c *client.Client, args []string) error {
		ctx, done := a.interruptible(ctx)
		defer done()
		err := do(ctx, c, args)
		var sig interrupted
		if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &sig) {
			return exitStatus(codeSignal + int(sig))
		}
		return err
	})
}

// withSignals is with for a command that sees to signals itself.
func (a *app) withSignals(do work) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.began = true
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, args)
	}
}

// client makes the client that the global flags ask for.
func (a *app) client(opts ...client.Option) (*client.Client, error) {
	if a.socket != "" {
		opts = append(opts, client.WithSocket(a.socket))
	}
	if !a.noAutostart {
		opts = append(opts, client.WithAutostart(client.DaemonConfig{}))
	}
	return client.New(opts...)
}

// interrupted is the cause of a context that a signal ended.
type interrupted syscall.Signal

func (i interrupted) Error() string { return "interrupted by " + syscall.Signal(i).String() }

// interruptible ends the context with the first SIGINT, SIGTERM or SIGHUP. The
// second one ends the program, as it would without us. Once the function returned
// has been called, the cause of the context tells whether there was one.
func (a *app) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	kinds := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	signals, stop := a.signals(kinds...)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-signals:
			stop()
			a.restore(kinds...)
			if sig, ok := s.(syscall.Signal); ok {
				cancel(interrupted(sig))
			}
		case <-over:
		}
	}()
	return ctx, func() {
		close(over)
		<-ended
		stop()
		cancel(nil)
	}
}

// answerGrace is how long, once a signal has come, the answer to a request is still
// waited for: a request whose fate is not known may leave something behind.
var answerGrace = time.Second

// outlasting returns a context that ends a while after ctx, with the same cause.
func outlasting(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		time.AfterFunc(while, func() { end(context.Cause(ctx)) })
	})
	return longer, func() { forget(); end(nil) }
}

// orLeave does what no context can end, such as reading a file that is a pipe. When
// ctx ends it returns the error of ctx; what do is at then ends with the process.
func orLeave[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// arguments checks the number of arguments and names what is missing. A
// negative most means any number.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s needs %s.", cmd.CommandPath(), what)
		case most == 0 && len(args) > 0:
			return usagef("%s takes no arguments: %q is too much.", cmd.CommandPath(), args[0])
		case most > 0 && len(args) > most:
			return usagef("%s takes %s and no more: %q is too much.", cmd.CommandPath(), what, args[most])
		}
		return nil
	}
}

// each does something for every reference, tells of each failure, and returns
// the first one's exit code at the end.
func (a *app) each(ctx context.Context, refs []string, do func(ref string) error) error {
	var code exitStatus
	for _, ref := range refs {
		err := do(ref)
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			a.say("%s", err)
			if code == 0 {
				code = exitStatus(exitCode(err))
			}
		}
	}
	if code != 0 {
		return code
	}
	return nil
}
