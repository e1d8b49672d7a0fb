package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

// Code says why a call failed. The numbers are those of gRPC, which ttrpc sends too.
type Code int32

// The codes that the supervisor uses.
const (
	Canceled          Code = 1
	Unknown           Code = 2
	InvalidArgument   Code = 3
	DeadlineExceeded  Code = 4
	ResourceExhausted Code = 8
	Aborted           Code = 10
	Unimplemented     Code = 12
	Internal          Code = 13
	Unavailable       Code = 14
)

// Error is the error of a call with its code. Methods return it; the caller gets both
// fields.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// Errorf returns an Error.
func Errorf(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// statusOf returns what the caller learns of an error; nil if there is none.
func statusOf(err error) *guestv1.CallStatus {
	if err == nil {
		return nil
	}
	code := Unknown
	e, ok := errors.AsType[*Error](err)
	switch {
	case ok:
		return &guestv1.CallStatus{Code: int32(e.Code), Message: valid(e.Message)}
	case errors.Is(err, context.Canceled):
		code = Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = DeadlineExceeded
	}
	return &guestv1.CallStatus{Code: int32(code), Message: valid(err.Error())}
}

// valid replaces what is no UTF-8, which the caller could not decode.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
