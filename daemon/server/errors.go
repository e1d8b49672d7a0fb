package server

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/internal/fault"
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

// status makes the error of a call: code, sentence and ErrorInfo. An error without a
// published reason is an internal error and is logged here.
func (g *guard) status(method string, err error) error {
	if err == nil {
		return nil
	}
	f := fault.Of(err)
	if f == nil {
		if st, ok := status.FromError(err); ok {
			return withReason(st)
		}
	}
	c, reason := code(err), fault.ReasonOf(err)
	if f == nil && c == codes.Internal {
		g.log.Error("a call failed", "method", method, "error", err)
	} else if f != nil && f.Cause != nil {
		g.log.Warn("a call failed", "method", method, "error", err, "cause", f.Cause)
	}
	info := &errdetails.ErrorInfo{Domain: fault.Domain, Reason: reason.String()}
	if f != nil {
		info.Metadata = f.Metadata
	}
	if f == nil && (c == codes.Canceled || c == codes.DeadlineExceeded) {
		info.Reason = agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED.String()
	}
	details := []protoadapt.MessageV1{info}
	if bad := new(admission.SpecError); errors.As(err, &bad) {
		details = append(details, &agboxv1.ResolveSpecResponse{Problems: bad.Problems})
	}
	st := status.New(c, err.Error())
	if with, detailErr := st.WithDetails(details...); detailErr == nil {
		st = with
	}
	return st.Err()
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
