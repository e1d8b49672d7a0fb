package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

type psOptions struct {
	listing[*agboxv1.ExecStatus]
	all bool
}

func (a *app) psCommand() *cobra.Command {
	o := psOptions{listing: listing[*agboxv1.ExecStatus]{id: (*agboxv1.ExecStatus).GetExecId, keys: execFilters(nil)}}
	cmd := &cobra.Command{
		Use:   "ps [-a] [SANDBOX] [flags]",
		Short: "List running commands; with -a also ended ones",
		Long: `List the running commands of SANDBOX, or of all sandboxes, newest first. With -a,
also list commands that have ended and are still kept; for those it shows the CPU
time and the peak memory.

The list includes the sandbox's own command, which comes from its file or its image.
Its name is main: "agbox logs SANDBOX/main" shows its output.`,
		Args:              arguments(0, 1, "one SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.runs(o.run),
	}
	cmd.Flags().BoolVarP(&o.all, "all", "a", false, "also list commands that have ended")
	o.addFlags(cmd)
	return cmd
}

func (o *psOptions) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	if o.filtersBy("state", "status", "exit", "exited") {
		o.all = true // only then are there commands that have ended
	}
	ids, err := a.resolved(ctx, c, ofSandbox, append(args, "")[:1], reads)
	if err != nil {
		return err
	}
	list, err := o.list(ctx, c, ids[0])
	if err != nil {
		return err
	}
	var names map[string]string
	if len(list) > 0 && (len(o.filters) > 0 || o.tabular()) {
		if names, err = sandboxNames(ctx, c); err != nil {
			return err
		}
	}
	o.keys = execFilters(names)
	if list, err = o.filtered(list); err != nil {
		return err
	}
	// With -a they come by their ids, which are random.
	slices.SortStableFunc(list, func(x, y *agboxv1.ExecStatus) int {
		return y.GetStartedAt().AsTime().Compare(x.GetStartedAt().AsTime())
	})
	return o.print(a, list, o.columns(), eachRow(func(e *agboxv1.ExecStatus) []view.Cell { return a.execRow(e, names) }))
}

// columns are the columns of execRow. Only commands that have ended have figures about
// what they used.
func (o *psOptions) columns() []view.Column {
	return []view.Column{
		{Title: "NAME", Min: 6},
		{Title: "EXEC", Min: 12, Omit: 1},
		{Title: "SANDBOX", Min: 7, Omit: 2},
		{Title: "STATE"},
		{Title: "EXIT", Right: true, Omit: 4},
		{Title: "STARTED", Omit: 3},
		{Title: "CPU", Right: true, Omit: 5, Wide: !o.all},
		{Title: "MEMORY", Right: true, Omit: 6, Wide: !o.all},
		{Title: "SANDBOX ID", Wide: true},
		{Title: "COMMAND", Min: 12},
	}
}

// sandboxNames are the names of all sandboxes, by their ids.
func sandboxNames(ctx context.Context, c *client.Client) (map[string]string, error) {
	handles, err := c.ListSandboxes(ctx, client.ListOptions{IncludeDeleted: true})
	names := make(map[string]string, len(handles))
	for _, h := range handles {
		names[h.GetSandboxId()] = h.GetName()
	}
	return names, err
}

func (o *psOptions) list(ctx context.Context, c *client.Client, sandbox string) ([]*agboxv1.ExecStatus, error) {
	if !o.all {
		return c.ListActiveExecs(ctx, sandbox)
	}
	sandboxes := []string{sandbox}
	if sandbox == "" {
		handles, err := c.ListSandboxes(ctx, client.ListOptions{})
		if err != nil {
			return nil, err
		}
		sandboxes = collect(handles, (*agboxv1.SandboxHandle).GetSandboxId)
	}
	var list []*agboxv1.ExecStatus
	for _, id := range sandboxes {
		for e, err := range c.ListExecs(ctx, id) {
			if err != nil {
				return nil, err
			}
			list = append(list, e)
		}
	}
	return list, nil
}

func (a *app) execRow(e *agboxv1.ExecStatus, names map[string]string) []view.Cell {
	exit := view.Text("-")
	if hasExit(e) {
		exit.Text = fmt.Sprint(e.GetExitCode())
		if e.GetExitCode() != 0 {
			exit.Style = view.Bad
		}
	}
	return cells(
		orDash(e.GetName()), e.GetExecId(), cmp.Or(names[e.GetSandboxId()], e.GetSandboxId()),
		stateCell(execState(e)+endMarks(e)), exit, a.sinceCell(e.GetStartedAt()), cpuTime(e), peakMemory(e),
		e.GetSandboxId(), shellWords(e.GetCommand()),
	)
}

func hasExit(e *agboxv1.ExecStatus) bool { return view.HasExitCode(e.GetState(), e.GetExitCode()) }

// execLimits are the flags that bound a command.
type execLimits struct {
	timeout, idle, grace limitFlag
	maxLog               string
}

// limitFlag is an optional duration, such as 10m.
type limitFlag struct {
	given bool
	value time.Duration
}

func (f *limitFlag) String() string {
	if !f.given {
		return ""
	}
	return document.FormatDuration(f.value)
}

// Type names the value in the help.
func (f *limitFlag) Type() string { return "TIME" }

// Set takes the value from the command line.
func (f *limitFlag) Set(text string) (err error) {
	f.value, err = document.ParseDuration(text)
	f.given = err == nil
	return err
}

func (f *limitFlag) proto() *durationpb.Duration {
	if !f.given {
		return nil
	}
	return durationpb.New(f.value)
}

func (l *execLimits) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&l.timeout, "timeout", "end the command after this `TIME`, for example 10m; agbox then exits with 124")
	f.Var(&l.idle, "idle-timeout", "end it after this `TIME` without output; agbox then exits with 124")
	f.Var(&l.grace, "grace", "`TIME` between SIGTERM and SIGKILL after a timeout (default 5s)")
	f.StringVar(&l.maxLog, "max-log", "", "keep at most `SIZE` of each output, for example 100m; more is dropped and counted")
}

// apply puts the limits into a request.
func (l *execLimits) apply(in *agboxv1.CreateExecRequest) error {
	for _, flag := range []struct {
		name string
		*limitFlag
	}{{"timeout", &l.timeout}, {"idle-timeout", &l.idle}} {
		if flag.given && flag.value < time.Millisecond {
			return usagef("--%s %s is too short: give at least 1ms, or omit it for no limit.", flag.name, flag.value)
		}
	}
	if l.grace.given && !l.timeout.given && !l.idle.given {
		return usagef("--grace needs --timeout or --idle-timeout. To end a command yourself, use `agbox kill --grace`.")
	}
	in.Timeout, in.IdleTimeout, in.Grace = l.timeout.proto(), l.idle.proto(), l.grace.proto()
	if l.maxLog == "" {
		return nil
	}
	size, err := document.ParseBytes(l.maxLog)
	if err != nil {
		return usagef("--max-log: %v.", err)
	}
	if size == 0 {
		return usagef("--max-log 0 would keep no output: give at least 1, or omit it to use the daemon's limit.")
	}
	in.MaxLogBytes = uint64(size)
	return nil
}

// endMarks are short remarks that ps shows after the state of an exec.
func endMarks(e *agboxv1.ExecStatus) string {
	var marks []string
	add := func(is bool, mark string) {
		if is {
			marks = append(marks, mark)
		}
	}
	add(e.GetErrorCode() == agboxv1.ErrorReason_EXEC_TIMEOUT.String(), "timeout")
	add(e.GetErrorCode() == agboxv1.ErrorReason_EXEC_IDLE_TIMEOUT.String(), "idle timeout")
	add(e.GetOomKilled(), "out of memory")
	add(droppedWords(e) != "", "log cut")
	if len(marks) == 0 {
		return ""
	}
	return " (" + strings.Join(marks, ", ") + ")"
}

// cpuTime is the CPU time of an exec that has ended: user and system.
func cpuTime(e *agboxv1.ExecStatus) string {
	if e.GetUserTime() == nil {
		return "-"
	}
	sum := e.GetUserTime().AsDuration() + e.GetSystemTime().AsDuration()
	switch {
	case sum >= time.Minute:
		return sum.Round(time.Second).String()
	case sum >= time.Second:
		return sum.Round(10 * time.Millisecond).String()
	}
	return sum.Round(time.Millisecond).String()
}

// peakMemory is the peak memory of an exec, in a suitable unit.
func peakMemory(e *agboxv1.ExecStatus) string {
	if e.GetPeakMemoryBytes() == 0 {
		return "-"
	}
	return memoryCount(e.GetPeakMemoryBytes())
}

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
		RunE:              a.runs(o.run),
	}
	cmd.Flags().StringVarP(&o.signal, "signal", "s", "", "`SIGNAL` by name or number, for example INT")
	completeWords(cmd, "signal", usualSignals...)
	cmd.Flags().DurationVar(&o.grace, "grace", client.DefaultGrace, "`TIME` between SIGTERM and SIGKILL, for example 10s (default 5s)")
	// The daemon has the default. pflag shows no default for 0s.
	cmd.Flags().Lookup("grace").DefValue = "0s"
	return cmd
}

func (o *killOptions) run(ctx context.Context, a *app, c *client.Client, refs []string) error {
	var sig syscall.Signal
	switch {
	case o.signal != "" && o.grace >= 0:
		return usagef("-s sends a single signal, so --grace has no effect: omit one of them.")
	case o.grace != client.DefaultGrace && o.grace < 0:
		return usagef("--grace %s is negative: use 0s for SIGKILL at once.", o.grace)
	case o.signal != "":
		var err error
		if sig, err = parseSignal(o.signal); err != nil {
			return err
		}
	}
	return a.each(ctx, refs, func(ref string) error {
		e, err := a.namedExec(ctx, c, ref, true, changes)
		if err != nil {
			return err
		}
		if sig != 0 {
			return c.SignalExec(ctx, e.GetExecId(), sig)
		}
		err = c.CancelExec(ctx, e.GetExecId(), o.grace)
		if failure, ok := errors.AsType[*client.Error](err); ok && failure.Reason == agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL.String() {
			a.say("%s", failure.Message)
			return nil
		}
		return err
	})
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
		ValidArgsFunction: a.completeBoth(),
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

func isExecState(e *agboxv1.ExecStatus, value string) bool {
	return isState(execState(e)+endMarks(e), value)
}

func isExit(e *agboxv1.ExecStatus, value string) bool {
	code, err := strconv.Atoi(value)
	return err == nil && hasExit(e) && int(e.GetExitCode()) == code
}

// execFilters are the keys of agbox ps.
func execFilters(names map[string]string) filterKeys[*agboxv1.ExecStatus] {
	return filterKeys[*agboxv1.ExecStatus]{
		"id":     func(e *agboxv1.ExecStatus, v string) bool { return strings.HasPrefix(e.GetExecId(), v) },
		"name":   func(e *agboxv1.ExecStatus, v string) bool { return strings.Contains(e.GetName(), v) },
		"state":  isExecState,
		"status": isExecState,
		"exit":   isExit,
		"exited": isExit,
		"command": func(e *agboxv1.ExecStatus, v string) bool {
			return strings.Contains(strings.Join(e.GetCommand(), " "), v)
		},
		"sandbox": func(e *agboxv1.ExecStatus, v string) bool {
			return v == e.GetSandboxId() || v == names[e.GetSandboxId()]
		},
	}
}
