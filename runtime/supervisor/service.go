package supervisor

import (
	"bytes"
	"context"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agbox/agbox/internal/ids"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/runtime/supervisor/files"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

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
		"guest.v1.Supervisor/Configure":  rpc.Unary(v.Configure),
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
		Protocol:          rpc.Protocol,
		SupervisorVersion: v.s.cfg.Version,
		BootId:            v.s.bootID,
		StartedAt:         guestv1.New(v.s.started),
		MainExecId:        v.s.mainExecID(),
		LogsDeleted:       v.s.logs.Deleted(),
	}, nil
}

// Configure replaces the boot configuration and the environment.
func (v *service) Configure(_ context.Context, req *guestv1.ConfigureRequest) (*guestv1.ConfigureResponse, error) {
	boot := req.GetBoot()
	if boot == nil {
		return nil, rpc.Errorf(rpc.InvalidArgument, "there is no configuration")
	}
	now := v.s.settings.Load()
	was, err := now.boot.MarshalVT()
	if err != nil {
		return nil, err
	}
	is, err := boot.MarshalVT()
	switch {
	case err != nil:
		return nil, err
	case bytes.Equal(was, is) && slices.Equal(now.own, req.GetEnv()):
	case v.s.mainExecID() != "":
		return nil, rpc.Errorf(rpc.FailedPrecondition, "the container's own command was started with another configuration")
	default:
		if req.GetHostname() != "" {
			v.s.files.do(func() { err = v.s.call(req.GetHostname()) })
		}
		if err != nil {
			return nil, err
		}
		v.s.settings.Store(settingsOf(v.s.cfg.Env, boot, req.GetEnv()))
	}
	return new(guestv1.ConfigureResponse), nil
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
	if err := rpc.CheckArguments(req.GetCommand(), req.GetEnv()); err != nil {
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

// Watch sends the records of execs that have ended or end later.
func (v *service) Watch(ctx context.Context, req *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	if n := len(req.GetExecIds()); n > rpc.MaxWatched {
		return rpc.Errorf(rpc.InvalidArgument, "%d execs in one watch; the limit is %d", n, rpc.MaxWatched)
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

// watch calls watching, then sends the record of each asked exec that is not running,
// then every exit. It subscribes before it reads the records, so it misses no exit. An
// exec that ends in between is sent once.
func (s *Supervisor) watch(ctx context.Context, asked []string, watching func() error, send func(*guestv1.ExecRecord) error) error {
	w := s.registry.subscribe()
	if w == nil {
		return rpc.Errorf(rpc.ResourceExhausted, "more than %d watchers; close one", maxWatchers)
	}
	defer s.registry.unsubscribe(w)
	if err := watching(); err != nil {
		return err
	}

	sent := make(map[*guestv1.ExecRecord]bool)
	for _, id := range asked {
		record := s.lookup(id)
		if s.runsHere(record) {
			continue
		}
		sent[record] = true
		if err := send(record); err != nil {
			return err
		}
	}
	// Only exits in the buffer by now can be duplicates.
	twice := len(w.exits)
	for {
		select {
		case record, ok := <-w.exits:
			if !ok {
				return rpc.Errorf(rpc.Aborted, "the watch was too slow or the supervisor stops; watch again")
			}
			if twice > 0 {
				if twice--; sent[record] {
					continue
				}
			}
			if err := send(record); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lookup returns the record of an exec, from memory or from its status file.
func (s *Supervisor) lookup(id string) *guestv1.ExecRecord {
	e, record := s.registry.get(id)
	if e == nil {
		if record = s.readStatus(id); record == nil {
			record = &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_UNKNOWN}
		}
		return record
	}
	if record == nil { // being started: it will run, or its failure is sent to the watchers
		record = &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: s.bootID}
	}
	return record
}

// runsHere reports whether the record is of a process that this supervisor runs. A
// process that ran under an earlier supervisor is lost.
func (s *Supervisor) runsHere(r *guestv1.ExecRecord) bool {
	return r.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_RUNNING && r.GetBootId() == s.bootID
}

// WriteStdin writes bytes to the standard input or the terminal of an exec.
func (v *service) WriteStdin(ctx context.Context, req *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
	switch {
	case req.GetWriter() == "" || len(req.GetWriter()) > rpc.MaxWriter:
		return nil, rpc.Errorf(rpc.InvalidArgument, "a writer has a name of 1 to %d bytes", rpc.MaxWriter)
	case len(req.GetData()) > rpc.MaxStdin:
		return nil, rpc.Errorf(rpc.InvalidArgument, "%d bytes in one call; the limit is %d", len(req.GetData()), rpc.MaxStdin)
	}
	e, err := v.decided(ctx, req.GetExecId())
	if e == nil || err != nil {
		return &guestv1.WriteStdinResponse{}, err
	}
	in := v.s.registry.inputOf(e)
	if in == nil {
		return &guestv1.WriteStdinResponse{}, nil
	}
	v.s.typing.Add(len(req.GetData()))
	// Small writes are always accepted, so a user can type while all other input is
	// stuck.
	if size := int64(len(req.GetData())); size > rpc.SmallStdin {
		defer v.s.waiting.Add(-size)
		if v.s.waiting.Add(size) > maxWaiting {
			return nil, rpc.Errorf(rpc.ResourceExhausted, "too much input waits for processes that do not read")
		}
	}
	written, open, err := in.write(ctx, req)
	if err != nil {
		return nil, err
	}
	return &guestv1.WriteStdinResponse{Offset: written, Open: open}, nil
}

// Processes lists processes of the container.
func (v *service) Processes(_ context.Context, req *guestv1.ProcessesRequest) (*guestv1.ProcessesResponse, error) {
	var resp *guestv1.ProcessesResponse
	v.s.look.do(func() { resp = v.s.listProcesses(int(req.GetAfterPid()), maxListed) })
	return resp, nil
}
