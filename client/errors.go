package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/archive"
)

// Error is the type of all errors of this package, except those of the caller's own
// writers.
type Error struct {
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the name of an agboxv1.ErrorReason. It is empty if the error did not come
	// from the daemon.
	Reason string
	// Message is a sentence for people that says what to do.
	Message string
	// Metadata has details of the message, for example "sandbox_id".
	Metadata map[string]string
	// Problems are the problems in the description of a sandbox, at most the first ones.
	// ResolveSpec returns all of them.
	Problems []*agboxv1.SpecProblem

	cause error
	// lost means that an existing connection broke, so the call may be retried.
	lost bool
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause: the error of a context, ErrDaemonUnreachable,
// ErrDaemonNotRunning, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Is matches the sentinels of this package by code.
func (e *Error) Is(target error) bool {
	class, ok := errors.AsType[*codeClass](target)
	return ok && class.code == e.Code
}

// GRPCStatus makes status.Code and status.FromError work with the error.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// stops reports whether the daemon has refused the call because it is being stopped.
func (e *Error) stops() bool { return e.Reason == agboxv1.ErrorReason_DAEMON_STOPPING.String() }

// away reports whether no daemon serves for now.
func (e *Error) away() bool { return e.lost || e.stops() }

// codeClass is a sentinel for all errors of one code.
type codeClass struct {
	code codes.Code
	text string
}

func (c *codeClass) Error() string { return c.text }

// The classes of errors, for errors.Is.
var (
	ErrNotFound      error = &codeClass{codes.NotFound, "not found"}
	ErrAlreadyExists error = &codeClass{codes.AlreadyExists, "already exists"}
	ErrInvalid       error = &codeClass{codes.InvalidArgument, "invalid request"}
	ErrUnavailable   error = &codeClass{codes.Unavailable, "unavailable"}
	ErrWrongState    error = &codeClass{codes.FailedPrecondition, "wrong state"}
	ErrOutOfRange    error = &codeClass{codes.OutOfRange, "cursor out of range"}
	ErrExhausted     error = &codeClass{codes.ResourceExhausted, "exhausted"}
)

// ErrDaemonUnreachable is wrapped by errors that mean that no daemon answers. If the
// engine does not answer, the error is only ErrUnavailable.
var ErrDaemonUnreachable = errors.New("agboxd is not reachable")

// ErrDaemonNotRunning is wrapped by errors that mean that no process listens on the
// daemon's socket. Such an error is also ErrDaemonUnreachable.
var ErrDaemonNotRunning = fmt.Errorf("%w: it is not running", ErrDaemonUnreachable)

// reasonCodes has the codes of reasons that are part of a record and not the status of a
// call. Reasons that only sandboxes or execs have are Aborted.
var reasonCodes = map[agboxv1.ErrorReason]codes.Code{
	agboxv1.ErrorReason_INVALID_REQUEST:                codes.InvalidArgument,
	agboxv1.ErrorReason_COMMAND_TOO_LONG:               codes.InvalidArgument,
	agboxv1.ErrorReason_UNSUPPORTED_SPEC:               codes.InvalidArgument,
	agboxv1.ErrorReason_SANDBOX_NOT_FOUND:              codes.NotFound,
	agboxv1.ErrorReason_SANDBOX_AMBIGUOUS:              codes.InvalidArgument,
	agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS:      codes.AlreadyExists,
	agboxv1.ErrorReason_SANDBOX_NAME_EXISTS:            codes.AlreadyExists,
	agboxv1.ErrorReason_SANDBOX_INVALID_STATE:          codes.FailedPrecondition,
	agboxv1.ErrorReason_SANDBOX_UNREACHABLE:            codes.Unavailable,
	agboxv1.ErrorReason_SANDBOX_NOT_READY:              codes.FailedPrecondition,
	agboxv1.ErrorReason_SANDBOX_EVENT_SEQUENCE_EXPIRED: codes.OutOfRange,
	agboxv1.ErrorReason_EXEC_NOT_FOUND:                 codes.NotFound,
	agboxv1.ErrorReason_EXEC_AMBIGUOUS:                 codes.InvalidArgument,
	agboxv1.ErrorReason_REQUEST_KEY_REUSED:             codes.AlreadyExists,
	agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS:         codes.AlreadyExists,
	agboxv1.ErrorReason_EXEC_NAME_EXISTS:               codes.AlreadyExists,
	// The sandbox is at its process or memory limit, or its log disk is full.
	agboxv1.ErrorReason_EXEC_START_FAILED:      codes.ResourceExhausted,
	agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL:  codes.FailedPrecondition,
	agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE:    codes.OutOfRange,
	agboxv1.ErrorReason_LOG_UNREADABLE:         codes.DataLoss,
	agboxv1.ErrorReason_ENGINE_UNAVAILABLE:     codes.Unavailable,
	agboxv1.ErrorReason_ENGINE_CHANGED:         codes.Unavailable,
	agboxv1.ErrorReason_ENGINE_FAILED:          codes.Internal,
	agboxv1.ErrorReason_IMAGE_NOT_FOUND:        codes.NotFound,
	agboxv1.ErrorReason_IMAGE_PULL_FAILED:      codes.Unavailable,
	agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE:   codes.AlreadyExists,
	agboxv1.ErrorReason_PORT_TAKEN:             codes.AlreadyExists,
	agboxv1.ErrorReason_NETWORK_POOL_EXHAUSTED: codes.ResourceExhausted,
	agboxv1.ErrorReason_STORE_FAILED:           codes.Unavailable,
	agboxv1.ErrorReason_DAEMON_STOPPING:        codes.Unavailable,
	agboxv1.ErrorReason_OVERLOADED:             codes.ResourceExhausted,
	agboxv1.ErrorReason_INTERNAL_ERROR:         codes.Internal,
	agboxv1.ErrorReason_UPGRADE_REFUSED:        codes.FailedPrecondition,
	agboxv1.ErrorReason_HOST_PATH_UNUSABLE:     codes.FailedPrecondition,
	agboxv1.ErrorReason_HOST_FOLDERS_FULL:      codes.FailedPrecondition,
	agboxv1.ErrorReason_FILE_SYSTEM_FULL:       codes.ResourceExhausted,
}

// recorded returns the error for a failure in a record.
func recorded(reason, message, key, id string) *Error {
	code, ok := reasonCodes[agboxv1.ErrorReason(agboxv1.ErrorReason_value[reason])]
	if !ok {
		code = codes.Aborted
	}
	return &Error{Code: code, Reason: reason, Message: message, Metadata: map[string]string{key: id}}
}

// SandboxError returns the error of a FAILED sandbox, or nil for any other.
func SandboxError(h *agboxv1.SandboxHandle) error {
	if h.GetState() != agboxv1.SandboxState_SANDBOX_STATE_FAILED {
		return nil
	}
	message := h.GetErrorMessage()
	if message == "" {
		message = fmt.Sprintf("Sandbox %s has failed.", h.GetSandboxId())
	}
	return recorded(h.GetErrorCode(), message, "sandbox_id", h.GetSandboxId())
}

// ExecError returns the error of a FAILED exec, which has no exit status, or nil for any
// other.
func ExecError(e *agboxv1.ExecStatus) error {
	if e.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED {
		return nil
	}
	message := e.GetError()
	if message == "" {
		message = fmt.Sprintf("Exec %s has failed.", e.GetExecId())
	}
	return recorded(e.GetErrorCode(), message, "exec_id", e.GetExecId())
}

// innerStatus returns the status within an error. status.FromError would put the words of all
// errors around it into its message.
func innerStatus(err error) *status.Status {
	var inner interface{ GRPCStatus() *status.Status }
	if errors.As(err, &inner) {
		return inner.GRPCStatus()
	}
	return status.New(codes.Unknown, err.Error())
}

// lostCode reports whether a status without details comes from the transport, or from a
// handler that a stopping server cancelled. That has the code CANCELLED; it is not a
// cancellation by this client, because decode has checked the context before.
func lostCode(code codes.Code) bool { return code == codes.Unavailable || code == codes.Canceled }

// ended returns the error of a call whose context has ended, wrapping the context's
// error.
func ended(cause error) *Error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return &Error{Code: codes.DeadlineExceeded, Message: "The call did not complete before its deadline.", cause: cause}
	}
	return &Error{Code: codes.Canceled, Message: "The call was cancelled.", cause: cause}
}

// begun makes an error final if the call may have had an effect already, so it must not
// be repeated.
func (e *Error) begun(again bool) *Error {
	if !again && e.stops() {
		cut := *e
		cut.Reason, cut.lost, cut.cause = "", true, ErrDaemonUnreachable
		cut.Message = "agboxd stopped during the transfer. Start the transfer again."
		return &cut
	}
	return e
}

// localError explains a failure on the host's side of a copy.
func localError(what string, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	e := &Error{Code: codes.Unknown, Message: fmt.Sprintf("%s failed: %v.", what, err), cause: err}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ended(err)
	case archive.IsRefusal(err):
		e.Code, e.Reason = codes.InvalidArgument, agboxv1.ErrorReason_ARCHIVE_REFUSED.String()
		e.Message = fmt.Sprintf("%s failed: %v. Nothing was written outside the target.", what, err)
	case errors.Is(err, fs.ErrNotExist):
		e.Code = codes.NotFound
	case errors.Is(err, fs.ErrPermission):
		e.Code = codes.PermissionDenied
	case errors.Is(err, fs.ErrExist):
		e.Code = codes.AlreadyExists
	}
	if one, ok := errors.AsType[*archive.Failure](err); ok {
		e.Message = fmt.Sprintf("%s failed: could not %s %q: %v.", what, one.Op, one.Name, one.Err)
	}
	return e
}
