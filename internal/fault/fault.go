// Package fault defines the error that users see. It has a reason for programs, a
// sentence for people, and a class that determines the gRPC code.
//
// The code that detects an error sets the class, one of the sentinels of
// github.com/containerd/errdefs. Only daemon/server maps classes to codes.
package fault

import (
	"errors"
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Domain is the ErrorInfo domain of all errors of this API.
const Domain = "agents-sandbox"

// Error is a failure with a published reason.
type Error struct {
	// Class is one of the errdefs sentinels, for example errdefs.ErrNotFound.
	Class error
	// Reason is the published reason, for programs.
	Reason agboxv1.ErrorReason
	// Message is a complete sentence that says what went wrong and what to do.
	Message string
	// Metadata identifies the objects in the message, for example by "sandbox_id".
	Metadata map[string]string
	// Cause is the underlying error, for the log; nil if there is none.
	Cause error
}

// New returns an error whose message is formatted as by fmt.Sprintf.
func New(class error, reason agboxv1.ErrorReason, format string, args ...any) *Error {
	return &Error{Class: class, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// With adds one entry of metadata and returns the same error.
func (e *Error) With(key, value string) *Error {
	if e.Metadata == nil {
		e.Metadata = make(map[string]string, 2)
	}
	e.Metadata[key] = value
	return e
}

// Because sets the cause and returns the same error.
func (e *Error) Because(cause error) *Error {
	e.Cause = cause
	return e
}

// Error returns the message only, because it contains everything that a person needs.
func (e *Error) Error() string { return e.Message }

// Unwrap exposes class and cause to errors.Is.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Class}
	}
	return []error{e.Class, e.Cause}
}

// Of returns the fault in err's chain, or nil.
func Of(err error) *Error {
	if f, ok := errors.AsType[*Error](err); ok {
		return f
	}
	return nil
}

// ReasonOf returns the published reason of err; INTERNAL_ERROR if it has none.
func ReasonOf(err error) agboxv1.ErrorReason {
	if f := Of(err); f != nil {
		return f.Reason
	}
	return agboxv1.ErrorReason_INTERNAL_ERROR
}

// Cause returns the cause of the fault in err's chain, for the log; nil if there is none.
func Cause(err error) error {
	if f := Of(err); f != nil {
		return f.Cause
	}
	return nil
}
