package agentcli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

const (
	// exitTimeout is the exit code of a tool that took too long, as that of timeout(1).
	exitTimeout = 124
	// exitNoTool is that of a tool that cannot be started, as in a shell.
	exitNoTool = 127
	// signalBase is added to a signal that ended a tool, as in a shell.
	signalBase = 128
	// killAfter is the time between SIGTERM and SIGKILL for a tool that takes too long.
	killAfter = 5 * time.Second
	// waitAgain is the pause after a failed request that waits.
	waitAgain = time.Second
)

// toolCall is a run of "agbox-agent tool".
type toolCall struct {
	session
	// id is the id of the call, name that of the tool, command what it runs.
	id, name string
	final    bool
	command  []string
	// once means that the output is recorded as the result of the call, and printed in later
	// incarnations instead of another run.
	once   bool
	result result
}

// result keeps the beginning of what a tool prints.
type result struct {
	kept []byte
	size uint64
}

func (r *result) Write(p []byte) (int, error) {
	r.kept = append(r.kept, p[:min(len(p), journal.MaxResultFile-len(r.kept))]...)
	r.size += uint64(len(p))
	return len(p), nil
}

// callAnswer is the answer to the op call.
type callAnswer struct {
	Result gate.CallState `json:"result"`
}

// runTool is the command tool.
func runTool(args []string) (func(ctx context.Context, s session) int, error) {
	c := new(toolCall)
	for ; len(args) > 0 && args[0] != "--" && args[0] != "" && args[0][0] == '-'; args = args[1:] {
		switch {
		case args[0] == "--final":
			c.final = true
		case args[0] == "--once":
			c.once = true
		case args[0] == "--id" && len(args) > 1:
			c.id, args = args[1], args[1:]
		default:
			return nil, fmt.Errorf("tool has no flag %q; \"agbox-agent help\" shows them", args[0])
		}
	}
	if len(args) < 3 || args[1] != "--" {
		return nil, errors.New("tool needs the NAME of the tool and, after --, the COMMAND that it is")
	}
	if c.once && c.id == "" {
		return nil, errors.New("tool --once needs an --id, by which later incarnations find the call")
	}
	c.name, c.command = args[0], args[2:]
	return func(ctx context.Context, s session) int {
		c.session = s
		return c.run(ctx)
	}, nil
}

// run runs the tool and returns its exit code.
func (c *toolCall) run(ctx context.Context) int {
	// The tool gets a signal when this thread ends, and that must not be before the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if code, known := c.recall(); known {
		return code
	}
	var begun callAnswer
	for _, request := range []map[string]any{
		{"op": "gate", "tool": c.name, "final": c.final},
		{"op": "call", "call": "begin", "kind": "tool", "name": c.name, "invocation": c.id},
	} {
		got, raw, err := c.ask(ctx, request, nil)
		if err == nil {
			err = json.Unmarshal(raw, &begun)
		}
		if err != nil {
			return c.say(exitFailed, "The supervisor cannot be asked: %v", err)
		}
		if got.Drain && got.DeadlineMs == 0 {
			return c.say(exitDrain, "The agent is drained, and its last step is over: the tool %s is not called.", c.name)
		}
		if !got.OK {
			return c.say(exitCode(got.Error.Code), "%s", got.Error.Message)
		}
	}
	c.id = begun.Result.Invocation
	cmd := exec.Command(c.command[0], c.command[1:]...) //nolint:gosec,noctx // it is the caller's own; run ends it itself
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.stdout, c.stderr
	if c.once {
		cmd.Stdout, cmd.WaitDelay = io.MultiWriter(c.stdout, &c.result), killAfter
	}
	cmd.Env = append(c.env, probes.CallVariable+"="+begun.Result.Mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		c.end(ctx, fmt.Sprintf("It could not be started: %v", err))
		return c.say(exitNoTool, "The tool %s cannot be started: %v", c.name, err)
	}
	return c.attend(ctx, cmd, signals)
}

// recall answers a call that an earlier incarnation has made since the checkpoint: it prints the
// result. known is false if the tool is to be run.
func (c *toolCall) recall() (code int, known bool) {
	name := variable(c.env, "AGBOX_JOURNAL")
	switch {
	case !c.once, name == "" && variable(c.env, "AGBOX_PREVIOUS_EXIT_CODE") == "": // the first incarnation has no such calls
		return 0, false
	case name == "":
		return c.say(exitRefused, "The calls of earlier incarnations are not known, so it is not known whether the call %q was made: ask the system that it went to. Without --once it is made in any case.", c.id), true
	}
	var h hydrated
	if err := h.calls(name, variable(c.env, "AGBOX_RESULTS")); err != nil {
		return c.say(exitRefused, "The calls of earlier incarnations cannot be read (%v), so it is not known whether the call %q was made: ask the system that it went to.", err, c.id), true
	}
	same := func(of call) bool { return of.Invocation == c.id }
	if i := slices.IndexFunc(h.Skip, same); i >= 0 {
		was := h.Skip[i]
		if was.ResultBytes > 0 || was.Result == nil && was.ResultBase64 == "" {
			return c.say(exitRefused, "The call %q was made, and its result is not recorded or not all of it: ask the system that it went to.", c.id), true
		}
		out, err := base64.StdEncoding.DecodeString(was.ResultBase64)
		if was.Result != nil {
			out = []byte(*was.Result)
		}
		if err == nil {
			_, err = c.stdout.Write(out)
		}
		if err != nil {
			return c.say(exitFailed, "%v", err), true
		}
		return exitOK, true
	}
	if slices.ContainsFunc(h.Pending, same) {
		return c.say(exitRefused, "The call %q has begun in an earlier incarnation, and may have had its effect: ask the system that it went to, and give it another --id to make it again.", c.id), true
	}
	return 0, false
}

// attend waits for the end of the tool. It passes signals on, and ends the tool if it takes
// too long.
func (c *toolCall) attend(ctx context.Context, cmd *exec.Cmd, signals <-chan os.Signal) int {
	waiting, cancel := context.WithCancel(ctx)
	aborted, ended := make(chan string, 1), make(chan struct{})
	waited := make(chan struct{})
	go func() { defer close(waited); c.awaitAbort(waiting, aborted) }()
	defer func() { cancel(); <-waited }()
	go func() { defer close(ended); _ = cmd.Wait() }() // its state says more than the error
	abort := ""
	var kill <-chan time.Time
	for {
		select {
		case sig := <-signals:
			_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal))
		case abort = <-aborted:
			_ = c.say(0, "The tool %s is ended: %s.", c.name, abort)
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
			kill = time.After(killAfter)
		case <-kill:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		case <-ended:
			switch abort { // whether it had its effect is not known
			case "":
			case probes.Shutdown:
				return exitDrain
			default:
				return exitTimeout
			}
			return c.ended(ctx, cmd.ProcessState)
		}
	}
}

// ended reports how a tool ended, and returns its exit code.
func (c *toolCall) ended(ctx context.Context, state *os.ProcessState) int {
	code := state.ExitCode()
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = signalBase + int(status.Signal())
	}
	why := ""
	if code != 0 {
		why = fmt.Sprintf("It exited with %d.", code)
	}
	c.end(ctx, why)
	return code
}

// end reports the end of the call.
func (c *toolCall) end(ctx context.Context, why string) {
	request := map[string]any{"op": "call", "call": "end", "invocation": c.id, "error": why}
	var body []byte
	if kept := c.result.kept; c.once {
		request["result_bytes"] = c.result.size
		if len(kept) > journal.MaxResult && uint64(len(kept)) == c.result.size {
			request["bytes"], body = len(kept), kept
		} else {
			// Not nil: a tool that prints nothing has a result, too.
			request["result_base64"] = append([]byte{}, kept[:min(len(kept), journal.MaxResult)]...)
		}
	}
	got, _, err := c.ask(ctx, request, body)
	switch {
	case err != nil:
		_ = c.say(0, "The end of the tool cannot be reported: %v", err)
	case !got.OK:
		_ = c.say(0, "%s", got.Error.Message)
	}
}

// awaitAbort sends the reason once the call is to be aborted. It returns when ctx ends or
// the call has.
func (c *toolCall) awaitAbort(ctx context.Context, aborted chan<- string) {
	for ctx.Err() == nil {
		got, raw, err := c.ask(ctx, map[string]any{"op": "call", "call": "wait", "invocation": c.id}, nil)
		var state callAnswer
		if err == nil {
			err = json.Unmarshal(raw, &state)
		}
		if err != nil {
			select {
			case <-time.After(waitAgain):
			case <-ctx.Done():
			}
			continue
		}
		switch {
		case !got.OK || state.Result.Ended:
			return
		case state.Result.Abort != "":
			aborted <- state.Result.Abort
			return
		}
	}
}

// say tells why, and returns the code.
func (c *toolCall) say(code int, format string, args ...any) int {
	_, _ = fmt.Fprintf(c.stderr, "agbox-agent: "+format+"\n", args...)
	return code
}
