package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The codes of calls that fail with a reason, as in the .proto file.
var callErrors = []struct {
	reason agboxv1.ErrorReason
	code   codes.Code
	exit   int
}{
	{agboxv1.ErrorReason_INVALID_REQUEST, codes.InvalidArgument, 2},
	{agboxv1.ErrorReason_COMMAND_TOO_LONG, codes.InvalidArgument, 2},
	{agboxv1.ErrorReason_UNSUPPORTED_SPEC, codes.InvalidArgument, 2},
	{agboxv1.ErrorReason_SANDBOX_NOT_FOUND, codes.NotFound, 3},
	{agboxv1.ErrorReason_SANDBOX_AMBIGUOUS, codes.InvalidArgument, 2},
	{agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS, codes.AlreadyExists, 4},
	{agboxv1.ErrorReason_SANDBOX_NAME_EXISTS, codes.AlreadyExists, 4},
	{agboxv1.ErrorReason_SANDBOX_INVALID_STATE, codes.FailedPrecondition, 4},
	{agboxv1.ErrorReason_SANDBOX_NOT_READY, codes.FailedPrecondition, 4},
	{agboxv1.ErrorReason_SANDBOX_EVENT_SEQUENCE_EXPIRED, codes.OutOfRange, 2},
	{agboxv1.ErrorReason_EXEC_NOT_FOUND, codes.NotFound, 3},
	{agboxv1.ErrorReason_EXEC_AMBIGUOUS, codes.InvalidArgument, 2},
	{agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL, codes.FailedPrecondition, 4},
	{agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE, codes.OutOfRange, 2},
	{agboxv1.ErrorReason_LOG_UNREADABLE, codes.DataLoss, 1},
	{agboxv1.ErrorReason_ENGINE_UNAVAILABLE, codes.Unavailable, 6},
	{agboxv1.ErrorReason_ENGINE_FAILED, codes.Internal, 1},
	{agboxv1.ErrorReason_IMAGE_NOT_FOUND, codes.NotFound, 3},
	{agboxv1.ErrorReason_IMAGE_PULL_FAILED, codes.Unavailable, 8},
	{agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE, codes.AlreadyExists, 4},
	{agboxv1.ErrorReason_NETWORK_POOL_EXHAUSTED, codes.ResourceExhausted, 7},
	{agboxv1.ErrorReason_STORE_FAILED, codes.Unavailable, 1},
	{agboxv1.ErrorReason_OVERLOADED, codes.ResourceExhausted, 7},
	{agboxv1.ErrorReason_INTERNAL_ERROR, codes.Internal, 1},
}

func TestEachClassOfErrorHasItsExitCode(t *testing.T) {
	d, socket := serveScripted(t)
	for _, tt := range callErrors {
		d.mu.Lock()
		d.refuse = reject(tt.code, tt.reason, "A sentence.")
		d.mu.Unlock()
		code, out, errs := agbox(t, socket, "ls")
		if code != tt.exit || out != "" || errs != "agbox: A sentence.\n" {
			t.Errorf("%v: code %d, want %d; stdout %q, stderr %q", tt.reason, code, tt.exit, out, errs)
		}
		// In exec, low exit codes belong to the command.
		for _, line := range [][]string{{"exec", "demo", "ls"}, {"run", "--image", "x", "--", "ls"}} {
			if code, _, errs := agbox(t, socket, line...); code != 125 || !strings.Contains(errs, "A sentence.") {
				t.Errorf("%v: %s ends with %d, stderr %q", tt.reason, line[0], code, errs)
			}
		}
	}
}

func TestNoDaemonIsExitCodeFive(t *testing.T) {
	t.Setenv("AGBOX_HOME", shortDir(t))
	for _, args := range [][]string{{"--no-autostart", "ls"}, {"daemon", "status"}, {"--socket", "/nowhere/x.sock", "ls"}} {
		code, _, errs := agbox(t, "", args...)
		if code != 5 || !strings.Contains(errs, "agbox daemon start") {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
	if code, _, errs := agbox(t, "", "daemon", "stop"); code != 0 || !strings.Contains(errs, "not running") {
		t.Errorf("stop: code %d, %q", code, errs)
	}
}

func TestACommandLineThatCannotBeMeantIsExitCodeTwo(t *testing.T) {
	_, socket := serveScripted(t)
	for _, line := range []string{
		"lss", "ls extra", "ls --nope", "ls -o xml", "create", "create --image", "create --image x --label nokey",
		"create --image x --idle-ttl soon", "create a b --image x", "inspect", "logs a b", "ps a b",
		"kill -s NOPE e", "kill", "daemon nope", "daemon start extra", "events --since-seq -1",
	} {
		code, out, errs := agbox(t, socket, strings.Fields(line)...)
		if code != 2 || out != "" || !strings.HasPrefix(errs, "agbox: ") {
			t.Errorf("%q: code %d, stdout %q, stderr %q", line, code, out, errs)
		}
	}
	for _, line := range []string{"exec", "exec demo", "exec demo --", "exec --nope demo ls", "run", "run --nope", "run --image x --label nokey -- ls"} {
		if code, _, errs := agbox(t, socket, strings.Fields(line)...); code != 125 || !strings.HasPrefix(errs, "agbox: ") {
			t.Errorf("%q: code %d, stderr %q", line, code, errs)
		}
	}
}

func TestATerminalIsAskedForInASentence(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	for _, args := range [][]string{{"exec", "-it", "demo", "say", "x"}, {"shell", "demo"}} {
		if code, _, errs := agbox(t, socket, args...); code != 125 || !strings.Contains(errs, "terminal") || !strings.Contains(errs, "standard input") {
			t.Errorf("%v: code %d, stderr %q", args, code, errs)
		}
	}
	if code, _, errs := agbox(t, socket, "attach", "--look-on", "--share", "x"); code != 125 || !strings.Contains(errs, "only one of") {
		t.Errorf("attach: code %d, stderr %q", code, errs)
	}
}

func TestTheHelpNamesEveryCodeOfTheTable(t *testing.T) {
	_, out, _ := agbox(t, "", "help", "exit-codes")
	for _, row := range exitTable {
		if !strings.Contains(out, fmt.Sprintf("  %-6d %s\n", row.code, row.meaning)) {
			t.Errorf("%d is missing", row.code)
		}
	}
}

func TestTheHelpNamesEachCommandThatExitsWithTheCodeOfAnother(t *testing.T) {
	_, out, _ := agbox(t, "", "help", "exit-codes")
	exceptions, _, _ := strings.Cut(out, ":\n")
	named := strings.FieldsFunc(exceptions, func(r rune) bool { return !unicode.IsLower(r) })
	everyCommand(newCLI(t, "").rootCommand(), nil, func(cmd *cobra.Command, words []string) {
		if own := cmd.Annotations[ownExitCodes]; own != "" && !slices.Contains(named, own) {
			t.Errorf("%v is not named in %q", words, exceptions)
		}
	})
}

func TestAnErrorOfAnotherKindIsExitCodeOne(t *testing.T) {
	if code := exitCode(errors.New("disk full")); code != 1 {
		t.Errorf("got %d", code)
	}
}
