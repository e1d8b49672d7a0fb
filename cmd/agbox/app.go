package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/spec/projections"
)

// app is one run of the program. Its fields hold everything it uses of its process,
// so tests run the same code.
type app struct {
	// stdin is nil if there is none.
	stdin  *os.File
	stdout io.Writer
	stderr io.Writer
	// width is the width of the terminal behind stderr. 0 means that stderr is no
	// terminal.
	width     func() int
	now       func() time.Time
	lookupEnv func(string) (string, bool)
	// replace becomes another program, as syscall.Exec does.
	replace func(path string, argv, env []string) error
	// signals subscribes to signals; the returned function unsubscribes. All
	// subscriptions share one channel: the next one receives what the last one left.
	signals func(...os.Signal) (<-chan os.Signal, func())
	// restore gives signals their default action again, whoever has subscribed to them.
	restore func(...os.Signal)
	// raise sends a signal to this process.
	raise func(syscall.Signal)
	// goesOn is what goes on without agbox.
	goesOn *background
	// takeOver ends the newest interruptible, so that signals come to a newer one.
	takeOver func()

	// Global flags.
	socket      string
	noAutostart bool

	// outages tells of a daemon that goes away; set with the first client.
	outages *outageNews

	// began is set once a command's own work starts. Errors before that are usage
	// errors.
	began bool
}

// say writes one message to stderr. Control characters are escaped: text from a
// sandbox, such as an error message, must not control the terminal.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "agbox: %s\n", printableLines(fmt.Sprintf(format, args...)))
}

// println writes a line to stdout.
func (a *app) println(values ...any) error {
	_, err := fmt.Fprintln(a.stdout, values...)
	return err
}

// printf writes text to stdout.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format, args...)
	return err
}

// sayEach writes each line as a message of its own.
func (a *app) sayEach(lines string) {
	for line := range strings.SplitSeq(lines, "\n") {
		a.say("%s", line)
	}
}

// work is the part of a command that uses the client.
type work func(ctx context.Context, c *client.Client, args []string) error

// with makes the RunE of a command that talks to the daemon and ends on Ctrl-C.
func (a *app) with(do work) func(*cobra.Command, []string) error {
	return a.withSignals(func(ctx context.Context, c *client.Client, args []string) error {
		ctx, done := a.interruptible(ctx)
		defer done()
		err := do(ctx, c, args)
		if errors.Is(err, context.Canceled) {
			return cmp.Or(signalled(ctx), err)
		}
		return err
	})
}

// runs is with for the method of a command's options that does its work.
func (a *app) runs(run func(context.Context, *app, *client.Client, []string) error) func(*cobra.Command, []string) error {
	return a.with(func(ctx context.Context, c *client.Client, args []string) error { return run(ctx, a, c, args) })
}

// withSignals is like with, for a command that handles signals itself.
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

// client returns a client configured by the global flags.
func (a *app) client(opts ...client.Option) (*client.Client, error) {
	if a.socket != "" {
		opts = append(opts, client.WithSocket(a.socket))
	}
	if !a.noAutostart {
		opts = append(opts, client.WithAutostart(client.DaemonConfig{}))
	}
	if a.outages == nil {
		a.outages = &outageNews{line: a.outageLine}
	}
	return client.New(append(opts, client.WithOutages(a.outages.tell))...)
}

// outageLine is outageNews.line on standard error.
func (a *app) outageLine(begin, text string) {
	if a.width() > 0 {
		fmt.Fprint(a.stderr, begin)
		a.say("%s", text)
	}
}

// interrupted is the cause of a context that a signal ended.
type interrupted syscall.Signal

func (i interrupted) Error() string { return "interrupted by " + syscall.Signal(i).String() }

// signalled is the exit status for the signal that has ended ctx; nil if none has.
func signalled(ctx context.Context) error {
	if sig, ok := errors.AsType[interrupted](context.Cause(ctx)); ok {
		return exitStatus(codeSignal + int(sig))
	}
	return nil
}

// interruptible cancels the context on the first SIGINT, SIGTERM or SIGHUP. The second one
// says what goes on without agbox, and ends the program; a later call of interruptible takes
// it over. After the returned function was called, the cause of the context says whether a
// signal came.
func (a *app) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	kinds := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	if a.takeOver != nil {
		a.takeOver()
	}
	signals, stop := a.signals(kinds...)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for presses := 0; ; {
			select {
			case s := <-signals:
				sig, ok := s.(syscall.Signal)
				if !ok {
					continue
				}
				if presses++; presses == 1 {
					defer a.restore(kinds...)
					cancel(interrupted(sig))
					continue
				}
				a.say("%s", a.goesOn.text())
				stop()
				a.restore(kinds...)
				a.raise(sig)
				return
			case <-over:
				return
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(over)
		<-ended
		stop()
	})
	a.takeOver = end
	return ctx, func() {
		end()
		cancel(nil)
	}
}

// background says what goes on in the background if agbox is ended at once.
type background struct {
	mu   sync.Mutex // guards said
	said string
}

// is sets the sentences.
func (b *background) is(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = fmt.Sprintf(format, args...)
}

func (b *background) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.said == "" {
		return "Ended at once. Sandboxes and commands go on in the background: `agbox ls` and `agbox ps` show them, `agbox stop` and `agbox kill` end them."
	}
	return "Ended at once. " + b.said
}

// answerGrace is how long, after a signal, a command still waits for the answer to a
// request: a request whose result is unknown may leave something behind.
var answerGrace = time.Second

// outlasting returns a context that ends a while after ctx, with the same cause.
func outlasting(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		time.AfterFunc(while, func() { end(context.Cause(ctx)) })
	})
	return longer, func() { forget(); end(nil) }
}

// orLeave calls do, which no context can cancel, for example to read a file that is a
// pipe. When ctx ends it returns the error of ctx; do then continues until the process
// ends.
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
			return usagef("%s takes no arguments, but got %q.", cmd.CommandPath(), args[0])
		case most > 0 && len(args) > most:
			return usagef("%s takes only %s: remove %q.", cmd.CommandPath(), what, args[most])
		}
		return nil
	}
}

// each calls do for every reference, prints each failure, and returns the exit code
// of the first one.
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

// onlyCommands makes cmd a group of commands: without arguments it shows its help; an unknown
// command is a usage error.
func onlyCommands(cmd *cobra.Command, subs ...*cobra.Command) {
	for _, sub := range subs {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	cmd.SuggestionsMinimumDistance = fewTypos
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// endsInText marks a command whose arguments after the first are text for a program or an agent,
// which may be empty.
const endsInText = "ends in text"

// ownSocketOnly refuses --socket: a daemon derives the path from its environment.
func (a *app) ownSocketOnly() error {
	if a.socket != "" {
		return usagef("The daemon derives its socket path from AGBOX_HOME or XDG_RUNTIME_DIR: set one of them instead of --socket.")
	}
	return nil
}

// glance bounds optional requests, such as completion and the daemon's version.
const glance = 2 * time.Second

// askRunning asks a running daemon without starting one. It fails after glance.
func askRunning[T any](ctx context.Context, a *app, ask func(context.Context, *client.Client) (T, error)) (answer T, err error) {
	quiet := *a
	quiet.noAutostart = true
	c, err := quiet.client(client.WithReconnect(0))
	if err != nil {
		return answer, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, glance)
	defer cancel()
	return ask(ctx, c)
}

// host is this machine as the tools see it: home, caches and environment.
func (a *app) host() projections.Host {
	h := projections.Host{Env: make(map[string]string)}
	if home, err := os.UserHomeDir(); err == nil {
		h.Home = home
	}
	if install, err := paths.FromEnv(); err == nil {
		h.Caches = install.ToolCaches()
	}
	for _, name := range projections.Variables() {
		h.Env[name], _ = a.lookupEnv(name)
	}
	return h
}
