package supervisor

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

// startError says why the process of a command did not start.
type startError struct {
	kind guestv1.StartFailure
	// message is a sentence that names the problem and says what to do.
	message string
	// cause is set if the supervisor itself refused the start.
	cause guestv1.EndCause
}

func failure(kind guestv1.StartFailure, format string, args ...any) *startError {
	return &startError{kind: kind, message: fmt.Sprintf(format, args...)}
}

func other(format string, args ...any) *startError {
	return failure(guestv1.StartFailure_START_FAILURE_OTHER, format, args...)
}

// unrecorded is the error of a start that the host's disk has prevented, not the command.
func unrecorded(format string, args ...any) *startError {
	return failure(guestv1.StartFailure_START_FAILURE_NOT_RECORDED, format, args...)
}

// tooLate is the error of a start after the supervisor began to stop.
func tooLate() *startError {
	fail := other("The sandbox was stopped before the command was started.")
	fail.cause = guestv1.EndCause_END_CAUSE_STOP
	return fail
}

// exitCode returns the exit code that a shell would return: 127 if there is no such
// command, 126 if it cannot be executed, and that of SIGTERM if a stop prevented the
// start.
func (f *startError) exitCode() int32 {
	switch {
	case f.cause == guestv1.EndCause_END_CAUSE_STOP:
		return signalBase + int32(syscall.SIGTERM)
	case f.kind == guestv1.StartFailure_START_FAILURE_COMMAND_NOT_FOUND:
		return 127
	}
	return 126
}

// signalBase is added to a signal's number to make an exit code, as shells do.
const signalBase = 128

// explain turns an error of fork or exec into a startError.
func (p *plan) explain(err error) *startError {
	if errors.Is(err, errEnding) {
		return tooLate()
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return other("The command %s could not be started: %v.", show(p.path), err)
	}
	const notExecutable = guestv1.StartFailure_START_FAILURE_COMMAND_NOT_EXECUTABLE
	switch errno {
	case syscall.EAGAIN:
		return other("The command %s could not be started because the sandbox is at its process limit: end some of its processes, or stop and start it, and try again.", show(p.path))
	case syscall.ENOMEM:
		return other("The command %s could not be started because the sandbox is out of memory: end some of its processes or give it more memory.", show(p.path))
	case syscall.E2BIG:
		return other("The command line and environment of %s are longer than Linux accepts: pass long data in a file instead.", show(p.path))
	case syscall.ENOENT:
		return failure(notExecutable, "The file %s exists but what it needs to run does not: install the interpreter named in its first line, or the dynamic loader it was linked with.", show(p.path))
	case syscall.ENOEXEC:
		return failure(notExecutable, "The file %s is no program for this machine: give a script a first line like #!/bin/sh, or use a binary built for this architecture.", show(p.path))
	case syscall.ETXTBSY:
		return failure(notExecutable, "The file %s is being written: try again when it is closed.", show(p.path))
	case syscall.EACCES:
		return failure(notExecutable, "The user %s may not execute %s in directory %s: check the permissions of both, and that the file system is not mounted noexec.", p.who, show(p.path), show(p.dir))
	case syscall.EPERM:
		return other("The kernel did not allow %s to be started as user %s: the container lacks the capability to change users, or a security policy forbids it.", show(p.path), p.who)
	}
	return failure(notExecutable, "The command %s could not be started: %v.", show(p.path), errno)
}

// longestShown is the maximum number of bytes of one name in a message.
const longestShown = 256

// show quotes a name for a message and cuts a long one.
func show(s string) string {
	if len(s) > longestShown {
		return strconv.Quote(s[:longestShown]) + "..."
	}
	return strconv.Quote(s)
}

// cut returns at most n bytes of s.
func cut(s string, n int) string { return s[:min(len(s), n)] }
