package server

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// code is the only place that maps classes of errors to gRPC codes.
func code(err error) codes.Code {
	if errors.Is(err, context.Canceled) {
		return codes.Canceled
	}
	if f := fault.Of(err); f != nil {
		err = f.Class // a deadline in its cause is the daemon's own, such as for a call of the engine
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errdefs.IsInvalidArgument(err):
		return codes.InvalidArgument
	case errdefs.IsNotFound(err):
		return codes.NotFound
	case errdefs.IsAlreadyExists(err), errdefs.IsConflict(err):
		return codes.AlreadyExists
	case errdefs.IsFailedPrecondition(err):
		return codes.FailedPrecondition
	case errdefs.IsOutOfRange(err):
		return codes.OutOfRange
	case errdefs.IsResourceExhausted(err):
		return codes.ResourceExhausted
	case errdefs.IsUnavailable(err):
		return codes.Unavailable
	case errdefs.IsDataLoss(err):
		return codes.DataLoss
	case errdefs.IsNotImplemented(err):
		return codes.Unimplemented
	case errdefs.IsPermissionDenied(err), errdefs.IsUnauthorized(err):
		return codes.PermissionDenied
	}
	return codes.Internal
}

// withReason adds the reason to a status that gRPC or generated code has made.
func withReason(st *status.Status) error {
	if len(st.Details()) > 0 {
		return st.Err()
	}
	reason := agboxv1.ErrorReason_INTERNAL_ERROR
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		reason = agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented:
		reason = agboxv1.ErrorReason_INVALID_REQUEST
	}
	if with, err := st.WithDetails(&errdetails.ErrorInfo{Domain: fault.Domain, Reason: reason.String()}); err == nil {
		st = with
	}
	return st.Err()
}

func invalid(format string, args ...any) error {
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, format, args...)
}
