package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The exit codes of agbox.
const (
	codeOK         = 0
	codeFailure    = 1
	codeUsage      = 2
	codeNotFound   = 3
	codeConflict   = 4
	codeNoDaemon   = 5
	codeNoEngine   = 6
	codeExhausted  = 7
	codeNoRegistry = 8
	codeTimeout    = 124
	codeExecAgbox  = 125
	codeNotRunable = 126
	codeNoCommand  = 127
	codeSignal     = 128
)

// ownExitCodes marks a command whose exit code is that of another process.
const ownExitCodes = "agbox-own-exit-codes"

// exitRow is one row of the table that maps errors to exit codes; the help shows it.
type exitRow struct {
	code    int
	meaning string
	// reasons map to this code whatever their gRPC code is; they take precedence over classes.
	reasons []agboxv1.ErrorReason
	// classes are the gRPC codes of all other errors that map to this code.
	classes []codes.Code
}

// exitTable maps errors to exit codes. An error that matches no row is codeFailure.
var exitTable = []exitRow{
	{code: codeOK, meaning: "success"},
	{code: codeFailure, meaning: "any other failure", reasons: []agboxv1.ErrorReason{
		agboxv1.ErrorReason_STORE_FAILED,
		agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
	}},
	{code: codeUsage, meaning: "the command line or the request is not valid",
		classes: []codes.Code{codes.InvalidArgument, codes.OutOfRange}},
	{code: codeNotFound, meaning: "the sandbox, exec, image, feature or file does not exist",
		classes: []codes.Code{codes.NotFound}},
	{code: codeConflict, meaning: "the name or id is taken, or the state does not allow it",
		classes: []codes.Code{codes.AlreadyExists, codes.FailedPrecondition}},
	{code: codeNoDaemon, meaning: "agboxd is not reachable",
		classes: []codes.Code{codes.Unavailable}},
	{code: codeNoEngine, meaning: "the container engine (Docker) is not reachable, or is another one",
		reasons: []agboxv1.ErrorReason{agboxv1.ErrorReason_ENGINE_UNAVAILABLE, agboxv1.ErrorReason_ENGINE_CHANGED}},
	{code: codeExhausted, meaning: "too many requests, or a limit is reached",
		classes: []codes.Code{codes.ResourceExhausted}},
	{code: codeNoRegistry, meaning: "an image or feature cannot be fetched now: its registry is away, or refuses; try again",
		reasons: []agboxv1.ErrorReason{agboxv1.ErrorReason_IMAGE_PULL_FAILED}},
}

// exitCode is the exit code of a command that failed with err.
func exitCode(err error) int {
	if errors.As(err, new(*usageError)) {
		return codeUsage
	}
	if errors.Is(err, client.ErrDaemonUnreachable) {
		return codeNoDaemon
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return codeFailure
	}
	reason := agboxv1.ErrorReason(agboxv1.ErrorReason_value[e.Reason])
	for _, row := range exitTable {
		if slices.Contains(row.reasons, reason) {
			return row.code
		}
	}
	for _, row := range exitTable {
		if slices.Contains(row.classes, e.Code) {
			return row.code
		}
	}
	return codeFailure
}

// execExitCode is the exit code of agbox exec for an exec that has ended.
func execExitCode(e *agboxv1.ExecStatus) int {
	code := int(e.GetExitCode())
	switch e.GetErrorCode() {
	case agboxv1.ErrorReason_EXEC_TIMEOUT.String(), agboxv1.ErrorReason_EXEC_IDLE_TIMEOUT.String():
		return codeTimeout // like timeout(1); the status has the real exit code
	}
	if e.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED {
		return code
	}
	// If no process ran, only the shell's codes 126 and 127 are meaningful.
	if code == codeNotRunable || code == codeNoCommand {
		return code
	}
	return codeExecAgbox
}

func exitCodesTopic() *cobra.Command {
	var b strings.Builder
	fmt.Fprintf(&b, "Exit codes of all commands except exec, shell, attach, run and the coding agents\n(%s):\n\n", strings.Join(presetNames(), ", "))
	for _, row := range exitTable {
		fmt.Fprintf(&b, "  %-6d %s\n", row.code, row.meaning)
	}
	fmt.Fprintf(&b, "  %d+n  signal n ended agbox, for example %d after Ctrl-C\n", codeSignal, codeSignal+2)
	b.WriteString("\nThese commands exit with the code of the command that they run:\n\n")
	fmt.Fprintf(&b, "  %-6s the command's own exit code\n", "n")
	fmt.Fprintf(&b, "  %d+n  signal n ended the command\n", codeSignal)
	fmt.Fprintf(&b, "  %-6d --timeout or --idle-timeout ended the command\n", codeTimeout)
	fmt.Fprintf(&b, "  %-6d agbox itself failed, or the exit code of the command is unknown; also for\n", codeExecAgbox)
	fmt.Fprintf(&b, "  %-6s what has a code of its own above: a command line or file that is not valid,\n", "")
	fmt.Fprintf(&b, "  %-6s a name that is taken or unknown, an image that cannot be pulled, no daemon,\n", "")
	fmt.Fprintf(&b, "  %-6s no engine, a limit. To tell these apart, use create or up, then exec\n", "")
	fmt.Fprintf(&b, "  %-6d the command cannot be executed\n", codeNotRunable)
	fmt.Fprintf(&b, "  %-6d the command was not found\n", codeNoCommand)
	b.WriteString("\nagbox logs exits with 0 when it has read all output, whatever the command's exit code was,\nand with 3 if the output was removed.")
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: b.String()}
}

// hasCode reports whether the daemon, or agbox like it, has failed with a code.
func hasCode(err error, code codes.Code) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && e.Code == code
}

// hasReason is like hasCode for the reason.
func hasReason(err error, reason agboxv1.ErrorReason) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && e.Reason == reason.String()
}

// exitStatus ends the program with a code; any message was already printed.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// errSpecTold means the sandbox spec is not valid; the problems were already printed.
// It is a failure of agbox itself, not the exit code of a command.
var errSpecTold = errors.New("the sandbox spec is not valid")

// toldError is a failure of agbox itself that was already printed. Unlike an
// exitStatus it is not the exit code of a command.
type toldError struct{ cause error }

func (e toldError) Error() string { return e.cause.Error() }

func (e toldError) Unwrap() error { return e.cause }

// usageError means the command line is not valid.
type usageError struct {
	text string
	// of is the command whose help tells more, if it is not the one that was called.
	of string
}

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}
