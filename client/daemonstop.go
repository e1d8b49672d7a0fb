package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// exitSlice is the length of one wait for the end of a process, in milliseconds. The
// context is checked in between.
const exitSlice = 50

// StopDaemon ends the daemon with SIGTERM and returns its process id once the process is
// gone. Sandboxes and execs continue. Before it signals the process, it checks that the
// process that listens on the socket is the one that answers. If no daemon runs, the
// error is ErrDaemonNotRunning.
func (c *Client) StopDaemon(ctx context.Context) (int, error) {
	pid, err := listenerPID(ctx, c.socket, c.users)
	if err != nil {
		return 0, dialError(ctx, c.socket, err)
	}
	// Opened before the check, so the id cannot be reused by another process.
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, &Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf(
			"The process %d that listens on %s is not accessible from here (%v). Stop agboxd where it was started.", pid, c.socket, err)}
	}
	defer unix.Close(process)
	answer, err := c.Ping(ctx)
	if err != nil {
		return 0, c.unanswered(ctx, process, pid, err)
	}
	if int(answer.GetPid()) != pid {
		return 0, &Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf(
			"Process %d listens on %s, but process %d answers. Stop agboxd where it was started.", pid, c.socket, answer.GetPid())}
	}
	err = unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return 0, &Error{Code: codes.PermissionDenied, Message: fmt.Sprintf(
			"agboxd (pid %d) belongs to another user. Stop it as that user or as root.", pid)}
	case err != nil && !errors.Is(err, syscall.ESRCH):
		return 0, &Error{Code: codes.Internal, Message: fmt.Sprintf("agboxd (pid %d) cannot be signalled: %v.", pid, err)}
	}
	return pid, awaitExit(ctx, process, pid)
}

// unanswered returns the error of a stop whose Ping failed with err.
func (c *Client) unanswered(ctx context.Context, process, pid int, err error) error {
	switch {
	case ctx.Err() != nil || !errors.Is(err, ErrDaemonUnreachable):
		return err
	case hasExited(process):
		return dialError(ctx, c.socket, syscall.ECONNREFUSED)
	}
	return &Error{Code: codes.Unavailable, cause: ErrDaemonUnreachable, Message: fmt.Sprintf(
		"The process %d listens on %s but does not answer. If it is agboxd, end it with `kill -9 %d`: sandboxes and commands keep running.",
		pid, c.socket, pid)}
}

// hasExited reports whether the process behind the descriptor has ended.
func hasExited(process int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// awaitExit waits until the process behind the descriptor has ended.
func awaitExit(ctx context.Context, process, pid int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, exitSlice)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, syscall.EINTR):
			return &Error{Code: codes.Internal, Message: fmt.Sprintf("The end of agboxd (pid %d) cannot be waited for: %v.", pid, err)}
		case ctx.Err() != nil:
			return &Error{Code: codes.DeadlineExceeded, cause: ctx.Err(), Message: fmt.Sprintf(
				"agboxd (pid %d) has not stopped in time. Its log says why.", pid)}
		}
	}
}
