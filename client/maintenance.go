package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// upgradePause is the pause between two checks for the new daemon. The old one still
// answers on its existing connections.
const upgradePause = 5 * time.Millisecond

// DaemonUpgrade describes a completed upgrade.
type DaemonUpgrade struct {
	OldVersion, NewVersion string
	// PID is the process id of the daemon. It does not change.
	PID int
}

// UpgradeDaemon replaces the daemon by another binary and returns when the new one
// answers. The path must be absolute. An empty path means the path from which the daemon
// was started, which may have a newer binary by now. If the binary fails its check, the
// error is ErrWrongState and nothing changes. Calls and streams of this and other clients
// continue.
func (c *Client) UpgradeDaemon(ctx context.Context, binary string) (DaemonUpgrade, error) {
	before, err := c.Ping(ctx)
	if err != nil {
		return DaemonUpgrade{}, err
	}
	out, err := c.sandboxes.UpgradeDaemon(ctx, &agboxv1.UpgradeDaemonRequest{Binary: binary})
	if err != nil {
		return DaemonUpgrade{}, err
	}
	after, err := c.awaitSuccessor(ctx, before.GetStartedAt().AsTime())
	if err != nil {
		return DaemonUpgrade{}, err
	}
	if why := after.GetUpgradeError(); why != "" {
		return DaemonUpgrade{}, &Error{Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_UPGRADE_REFUSED.String(),
			Message: fmt.Sprintf("The new agboxd passed its check but could not be executed, so the old one (%s) keeps running: %s. Fix that and try again.",
				after.GetVersion(), why)}
	}
	return DaemonUpgrade{OldVersion: out.GetOldVersion(), NewVersion: after.GetVersion(), PID: int(after.GetPid())}, nil
}

// awaitSuccessor returns the first answer of a daemon whose start time differs from the
// given one.
func (c *Client) awaitSuccessor(ctx context.Context, started time.Time) (*agboxv1.PingResponse, error) {
	look := time.NewTicker(upgradePause)
	defer look.Stop()
	for {
		now, err := c.Ping(ctx)
		if err != nil {
			return nil, err
		}
		if !now.GetStartedAt().AsTime().Equal(started) {
			return now, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, ended(ctx.Err())
		}
	}
}

// Doctor compares the daemon's records with the engine and its files. With fix set the
// daemon also performs the actions. Such a call is not repeated if its answer is lost,
// because a second answer would not report what the first call did.
func (c *Client) Doctor(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error) {
	return c.sandboxes.Doctor(ctx, &agboxv1.DoctorRequest{Fix: fix}, repetition{harmless: !fix})
}

// AdoptEngine is Doctor after the engine that answers was accepted as the one of the
// install, although it may have none of its containers. What it does not have is lost, except
// commands whose container has a living first process. It changes nothing if that is the
// engine of the install.
func (c *Client) AdoptEngine(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error) {
	return c.sandboxes.Doctor(ctx, &agboxv1.DoctorRequest{Fix: fix, AdoptEngine: true})
}

// DoctorOffline examines the install that the environment names while no daemon runs, and
// reports why a daemon cannot start. With fix set it adopts the sandboxes of a lost
// database. It runs "agboxd doctor".
func DoctorOffline(ctx context.Context, config DaemonConfig, fix bool) (*agboxv1.DoctorResponse, error) {
	if config.Binary == "" {
		var err error
		if config.Binary, err = FindDaemon(); err != nil {
			return nil, err
		}
	}
	args := []string{"doctor"}
	if fix {
		args = append(args, "--fix")
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, config.Binary, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ended(ctx.Err())
		}
		return nil, doctorFailed(err, stderr.String())
	}
	out := new(agboxv1.DoctorResponse)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(stdout.Bytes(), out); err != nil {
		return nil, &Error{Code: codes.Internal, Message: fmt.Sprintf(
			"agbox cannot read the output of %s (%v). Install agbox and agboxd of the same version.", config.Binary, err)}
	}
	return out, nil
}

// doctorFailed returns the last sentence that agboxd has written.
func doctorFailed(err error, stderr string) error {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	sentence := strings.TrimPrefix(lines[len(lines)-1], "agboxd: ")
	if sentence == "" || !errors.As(err, new(*exec.ExitError)) {
		sentence = fmt.Sprintf("agboxd cannot inspect the install: %v.", err)
	}
	return &Error{Code: codes.Unavailable, Message: sentence, cause: ErrDaemonUnreachable}
}
