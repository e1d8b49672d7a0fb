package supervisor

import (
	"context"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/ids"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

// service answers the calls of the protocol.
type service struct{ s *Supervisor }

var _ guestv1.SupervisorService = (*service)(nil)

// surviveCall turns a panic in one call into an error of that call. Otherwise all execs
// of the sandbox would die with the supervisor.
func surviveCall(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			reply, err = nil, status.Errorf(codes.Internal, "the supervisor failed in this call: %v", p)
		}
	}()
	return method(ctx, unmarshal)
}

// Hello identifies the supervisor.
func (v *service) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{
		Protocol:          wire.Protocol,
		SupervisorVersion: v.s.cfg.Version,
		BootId:            v.s.bootID,
		StartedAt:         timestamppb.New(v.s.started),
		MainExecId:        v.s.mainExecID(),
		LogsDeleted:       v.s.logs.Deleted(),
	}, nil
}

// Release starts the container's own command if it was held back.
func (v *service) Release(ctx context.Context, _ *guestv1.ReleaseRequest) (*guestv1.ReleaseResponse, error) {
	id, err := v.s.release(ctx)
	if err != nil {
		return nil, err
	}
	return &guestv1.ReleaseResponse{MainExecId: id}, nil
}

// Start starts an exec, at most once per id.
func (v *service) Start(ctx context.Context, req *guestv1.StartRequest) (*guestv1.StartResponse, error) {
	if err := checkStart(req); err != nil {
		return nil, err
	}
	record, err := v.s.start(ctx, req)
	if err != nil {
		return nil, err
	}
	return &guestv1.StartResponse{Exec: record}, nil
}

func checkStart(req *guestv1.StartRequest) error {
	switch {
	case !ids.Valid(req.GetExecId()):
		return status.Error(codes.InvalidArgument, "the exec id is not valid")
	case len(req.GetCommand()) == 0 || req.GetCommand()[0] == "":
		return status.Error(codes.InvalidArgument, "the command is empty")
	case req.GetCwd() != "" && !path.IsAbs(req.GetCwd()):
		return status.Errorf(codes.InvalidArgument, "the working directory %s is not absolute", show(req.GetCwd()))
	}
	for _, list := range [][]string{req.GetCommand(), req.GetEnv(), {req.GetCwd(), req.GetUser()}} {
		for _, s := range list {
			if strings.ContainsRune(s, 0) {
				return status.Error(codes.InvalidArgument, "command, environment, directory and user cannot hold a NUL")
			}
		}
	}
	if req.GetRows() > output.MaxSize || req.GetColumns() > output.MaxSize {
		return status.Errorf(codes.InvalidArgument, "a terminal has at most %d rows and columns", output.MaxSize)
	}
	for _, entry := range req.GetEnv() {
		if strings.IndexByte(entry, '=') <= 0 {
			return status.Errorf(codes.InvalidArgument, "the environment entry %s is not KEY=value", show(entry))
		}
	}
	if err := wire.CheckArguments(req.GetCommand(), req.GetEnv()); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// Cancel ends an exec and its tree.
func (v *service) Cancel(ctx context.Context, req *guestv1.CancelRequest) (*guestv1.CancelResponse, error) {
	e, err := v.decided(ctx, req.GetExecId())
	if e == nil || err != nil {
		return &guestv1.CancelResponse{}, err
	}
	grace := time.Duration(req.GetGraceMs()) * time.Millisecond
	cause := guestv1.EndCause_END_CAUSE_REQUEST
	if req.GetReap() {
		cause = guestv1.EndCause_END_CAUSE_REAP
	}
	return &guestv1.CancelResponse{Running: v.s.cancel(e, grace, cause)}, nil
}

// Signal sends one signal to an exec's process group.
func (v *service) Signal(ctx context.Context, req *guestv1.SignalRequest) (*guestv1.SignalResponse, error) {
	if sig := req.GetSignal(); sig < 1 || sig > 64 {
		return nil, status.Errorf(codes.InvalidArgument, "there is no signal %d; signals are 1 to 64", sig)
	}
	e, err := v.decided(ctx, req.GetExecId())
	if e == nil || err != nil {
		return &guestv1.SignalResponse{}, err
	}
	running, err := v.s.signal(e, syscall.Signal(req.GetSignal()))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the signal could not be sent: %v", err)
	}
	return &guestv1.SignalResponse{Running: running}, nil
}

// decided returns the exec once it runs or has ended, or nil if it is unknown.
func (v *service) decided(ctx context.Context, id string) (*execution, error) {
	e, _ := v.s.registry.get(id)
	if e == nil {
		return nil, nil
	}
	select {
	case <-e.decided:
		return e, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Watch sends the records of execs that have ended or end later.
func (v *service) Watch(ctx context.Context, req *guestv1.WatchRequest, stream guestv1.Supervisor_WatchServer) error {
	if n := len(req.GetExecIds()); n > wire.MaxWatched {
		return status.Errorf(codes.InvalidArgument, "%d execs in one watch; the limit is %d", n, wire.MaxWatched)
	}
	for _, id := range req.GetExecIds() {
		if !ids.Valid(id) {
			return status.Error(codes.InvalidArgument, "an exec id is not valid")
		}
	}
	watching := func() error { return stream.Send(&guestv1.WatchResponse{Watching: true}) }
	return v.s.watch(ctx, req.GetExecIds(), watching, func(r *guestv1.ExecRecord) error {
		return stream.Send(&guestv1.WatchResponse{Exec: r})
	})
}
