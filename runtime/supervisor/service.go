package supervisor

import (
	"context"
	"errors"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/agbox/agbox/internal/ids"
	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
	"github.com/agbox/agbox/runtime/supervisor/files"
	"github.com/agbox/agbox/runtime/supervisor/output"
	"github.com/agbox/agbox/runtime/supervisor/rpc"
)

// service answers the calls of the protocol.
type service struct{ s *Supervisor }

// methods are all calls of the protocol.
func (s *Supervisor) methods(f *files.Service) rpc.Methods {
	v, a := &service{s}, &agentService{s}
	return rpc.Methods{
		"guest.v1.Supervisor/Hello":      rpc.Unary(v.Hello),
		"guest.v1.Supervisor/Start":      rpc.Unary(v.Start),
		"guest.v1.Supervisor/Cancel":     rpc.Unary(v.Cancel),
		"guest.v1.Supervisor/Signal":     rpc.Unary(v.Signal),
		"guest.v1.Supervisor/WriteStdin": rpc.Unary(v.WriteStdin),
		"guest.v1.Supervisor/Resize":     rpc.Unary(v.Resize),
		"guest.v1.Supervisor/Watch":      rpc.Stream(v.Watch),
		"guest.v1.Supervisor/Release":    rpc.Unary(v.Release),
		"guest.v1.Supervisor/Processes":  rpc.Unary(v.Processes),

		"guest.v1.Agents/Look":   rpc.Unary(a.Look),
		"guest.v1.Agents/Follow": rpc.Stream(a.Follow),
		"guest.v1.Agents/Drain":  rpc.Unary(a.Drain),
		"guest.v1.Agents/Pause":  rpc.Unary(a.Pause),
		"guest.v1.Agents/Answer": rpc.Unary(a.Answer),
		"guest.v1.Agents/Allot":  rpc.Unary(a.Allot),

		"guest.v1.Files/Stat":          rpc.Unary(f.Stat),
		"guest.v1.Files/List":          rpc.Unary(f.List),
		"guest.v1.Files/MakeDirectory": rpc.Unary(f.MakeDirectory),
		"guest.v1.Files/Remove":        rpc.Unary(f.Remove),
		"guest.v1.Files/Move":          rpc.Unary(f.Move),
	}
}

// Hello identifies the supervisor.
func (v *service) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{
		Protocol:          wire.Protocol,
		SupervisorVersion: v.s.cfg.Version,
		BootId:            v.s.bootID,
		StartedAt:         guestv1.New(v.s.started),
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
		return rpc.Errorf(rpc.InvalidArgument, "the exec id is not valid")
	case len(req.GetCommand()) == 0 || req.GetCommand()[0] == "":
		return rpc.Errorf(rpc.InvalidArgument, "the command is empty")
	case req.GetCwd() != "" && !path.IsAbs(req.GetCwd()):
		return rpc.Errorf(rpc.InvalidArgument, "the working directory %s is not absolute", show(req.GetCwd()))
	}
	for _, list := range [][]string{req.GetCommand(), req.GetEnv(), {req.GetCwd(), req.GetUser()}} {
		for _, s := range list {
			if strings.ContainsRune(s, 0) {
				return rpc.Errorf(rpc.InvalidArgument, "command, environment, directory and user cannot hold a NUL")
			}
		}
	}
	if req.GetRows() > output.MaxSize || req.GetColumns() > output.MaxSize {
		return rpc.Errorf(rpc.InvalidArgument, "a terminal has at most %d rows and columns", output.MaxSize)
	}
	for _, entry := range req.GetEnv() {
		if strings.IndexByte(entry, '=') <= 0 {
			return rpc.Errorf(rpc.InvalidArgument, "the environment entry %s is not KEY=value", show(entry))
		}
	}
	if err := wire.CheckArguments(req.GetCommand(), req.GetEnv()); err != nil {
		return rpc.Errorf(rpc.InvalidArgument, "%v", err)
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
		return nil, rpc.Errorf(rpc.InvalidArgument, "there is no signal %d; signals are 1 to 64", sig)
	}
	e, err := v.decided(ctx, req.GetExecId())
	if e == nil || err != nil {
		return &guestv1.SignalResponse{}, err
	}
	running, err := v.s.signal(e, syscall.Signal(req.GetSignal()))
	if err != nil {
		return nil, rpc.Errorf(rpc.Internal, "the signal could not be sent: %v", err)
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
func (v *service) Watch(ctx context.Context, req *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	if n := len(req.GetExecIds()); n > wire.MaxWatched {
		return rpc.Errorf(rpc.InvalidArgument, "%d execs in one watch; the limit is %d", n, wire.MaxWatched)
	}
	for _, id := range req.GetExecIds() {
		if !ids.Valid(id) {
			return rpc.Errorf(rpc.InvalidArgument, "an exec id is not valid")
		}
	}
	watching := func() error { return send(&guestv1.WatchResponse{Watching: true}) }
	return v.s.watch(ctx, req.GetExecIds(), watching, func(r *guestv1.ExecRecord) error {
		return send(&guestv1.WatchResponse{Exec: r})
	})
}

// Resize sets the window size of an exec's terminal.
func (v *service) Resize(ctx context.Context, req *guestv1.ResizeRequest) (*guestv1.ResizeResponse, error) {
	for _, n := range []uint32{req.GetRows(), req.GetColumns()} {
		if n < 1 || n > output.MaxSize {
			return nil, rpc.Errorf(rpc.InvalidArgument, "a terminal has 1 to %d rows and columns", output.MaxSize)
		}
	}
	e, err := v.decided(ctx, req.GetExecId())
	if e == nil || err != nil {
		return &guestv1.ResizeResponse{}, err
	}
	in := v.s.registry.inputOf(e)
	if v.s.registry.childOf(e) == nil {
		return &guestv1.ResizeResponse{}, nil
	}
	if in == nil || !in.tty {
		return nil, rpc.Errorf(rpc.InvalidArgument, "the exec has no terminal")
	}
	in.control(func(fd int) { output.SetSize(fd, req.GetRows(), req.GetColumns()) })
	return &guestv1.ResizeResponse{Running: true}, nil
}

// fileUser resolves a user. The error is a sentence for people.
func (s *Supervisor) fileUser(spec string) (*files.Identity, error) {
	who, fail := s.lookupUser(spec)
	if fail != nil {
		return nil, errors.New(fail.message)
	}
	return &files.Identity{UID: who.uid, GID: who.gid, Groups: who.groups}, nil
}

// as runs fn with the rights of a user over files.
func (s *Supervisor) as(spec string, fn func() error) (err error) {
	s.files.do(func() {
		var id *files.Identity
		if id, err = s.fileUser(spec); err == nil {
			err = files.As(id, fn)
		}
	})
	return err
}
