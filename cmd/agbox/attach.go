package main

import (
	"cmp"
	"context"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type attachOptions struct {
	noStdin    bool
	lookOn     bool
	takeOver   bool
	share      bool
	tail       string
	detachKeys string
}

func (a *app) attachCommand() *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach {EXEC | SANDBOX} [flags]",
		Short: "Connect to a running command: see its output and type into it",
		Long: `Connect this terminal to a running command, for example one that you detached from
or that another terminal is connected to. The last screenful of its output is shown
first. agbox exits with its exit code. SANDBOX means the newest of its running
commands.

Several terminals may watch, but only one types: the first to connect. Those that
watch are told who types; Ctrl-C disconnects them. The one that types disconnects
with ctrl-p,ctrl-q. If the command or agbox has no terminal, Ctrl-C goes to the
command; pressing it three times within two seconds, or a second SIGTERM, disconnects.

If the daemon crashes, agbox starts it again; if it is stopped, agbox waits 30 s. What
you type meanwhile is kept, up to 64 KiB, and arrives once.`,
		Example: `  agbox attach job
  agbox attach --look-on job
  agbox attach --take-over job    # type instead of the current typist`,
		Annotations:       map[string]string{ownExitCodes: "attach"},
		Args:              arguments(1, 1, "one EXEC or SANDBOX"),
		ValidArgsFunction: a.completeExecsFirst(1),
		RunE: a.withSignals(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.lookOn, "look-on", false, "only watch")
	f.BoolVar(&o.noStdin, "no-stdin", false, "the same, under Docker's name")
	f.BoolVar(&o.takeOver, "take-over", false, "type instead of the current typist, who then only watches")
	f.BoolVar(&o.share, "share", false, "type together with the current typist")
	f.StringVar(&o.tail, "tail", "", "`NUMBER` of lines to show first, or all (default: a screenful)")
	addDetachKeys(cmd, &o.detachKeys)
	return cmd
}

// mode is the input mode that the flags request.
func (o *attachOptions) mode() (agboxv1.InputMode, error) {
	n, mode := 0, agboxv1.InputMode_INPUT_MODE_IF_FREE
	for _, way := range []struct {
		wanted bool
		mode   agboxv1.InputMode
	}{
		{o.lookOn || o.noStdin, agboxv1.InputMode_INPUT_MODE_NONE},
		{o.takeOver, agboxv1.InputMode_INPUT_MODE_TAKE_OVER},
		{o.share, agboxv1.InputMode_INPUT_MODE_SHARED},
	} {
		if way.wanted {
			n, mode = n+1, way.mode
		}
	}
	if n > 1 {
		return 0, usagef("Use only one of --look-on, --take-over and --share.")
	}
	return mode, nil
}

// usualRows is how many lines are shown if there is no terminal.
const usualRows = 24

// lines is how many past lines to show; nil means all.
func (o *attachOptions) lines(a *app) (*uint64, error) {
	rows := uint64(usualRows)
	if size := a.outputSize(); size != nil {
		rows = uint64(size.GetRows())
	}
	if o.tail == "" {
		return &rows, nil
	}
	return tailLines(o.tail)
}

func (o *attachOptions) run(ctx context.Context, a *app, c *client.Client, ref string) error {
	mode, err := o.mode()
	if err != nil {
		return err
	}
	lines, err := o.lines(a)
	if err != nil {
		return err
	}
	keys, err := parseDetachKeys(o.detachKeys)
	if err != nil {
		return err
	}
	// Attach by id: another command may get the name while this one is attached.
	e, err := a.namedExec(ctx, c, ref, true, mode != agboxv1.InputMode_INPUT_MODE_NONE)
	if err != nil {
		return err
	}
	opt := client.AttachOptions{Exec: e.GetExecId(), TailLines: lines, Input: mode, Writer: a.writerName()}
	if t := a.terminal(); e.GetTty() && t != nil && e.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		f := &console{app: a, client: c, terminal: t, keys: detachFilter{keys: keys}}
		return f.run(ctx, opt)
	}
	return o.inLines(ctx, a, c, opt, e)
}

// inLines attaches if agbox or the command has no terminal.
func (o *attachOptions) inLines(ctx context.Context, a *app, c *client.Client, opt client.AttachOptions, e *agboxv1.ExecStatus) error {
	types := opt.Input != agboxv1.InputMode_INPUT_MODE_NONE && (e.GetStdin() || e.GetTty())
	if !types {
		opt.Input = agboxv1.InputMode_INPUT_MODE_NONE
		ctx, done := a.interruptible(ctx)
		defer done()
		s := a.newSession(c, opt.Exec)
		defer s.relayed.Wait()
		err := s.attach(ctx, opt, false)
		return cmp.Or(signalled(ctx), err)
	}
	opt.OnInput = func(granted bool, typist string) {
		if !granted {
			a.say("%s", lookingOn(typist, e.GetExecId()))
		}
	}
	s := a.newSession(c, opt.Exec)
	s.runsOn = true
	s.start()
	return s.inForeground(ctx, []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGPIPE},
		func(ctx context.Context) error { return s.attach(ctx, opt, true) })
}
