package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// theTime is the time in all tests.
var theTime = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// scripted is a daemon whose sandboxes and commands behave as the names of their images
// and programs say: image "missing" is not found, image "slow" never becomes ready, image "ports" publishes some;
// program "exit" exits, "say" writes both streams, "wait" waits for a signal, "edit"
// takes the whole screen and waits, "nope" does not exist.
type scripted struct {
	agboxv1.UnimplementedSandboxServiceServer
	pid uint32

	mu      sync.Mutex // guards the fields below
	changed chan struct{}
	boxes   []*agboxv1.SandboxHandle
	events  []*agboxv1.SandboxEvent
	execs   []*agboxv1.ExecStatus
	signals []int32
	// rest is what will happen to an accepted sandbox.
	rest map[string]func()
	// refuse is the error of every unary call, if set.
	refuse error
	// asked counts the unary calls.
	asked int
	// images are those of the engine; nil is one that is called good:1.
	images []*agboxv1.Image
	// creating, if set, is called before a sandbox is created.
	creating func(*agboxv1.CreateSandboxRequest)
	// attached serves a client that attaches.
	attached func(grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) error
}

// uncopied says that no sandbox has a workspace that was copied in.
type uncopied struct {
	agboxv1.UnimplementedFileServiceServer
}

var _ agboxv1.FileServiceServer = uncopied{}

func (uncopied) CompareWorkspace(*agboxv1.CompareWorkspaceRequest, grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
	return reject(codes.FailedPrecondition, agboxv1.ErrorReason_WORKSPACE_HAS_NO_BASE, "no workspace was copied in")
}

func serveScripted(t *testing.T) (*scripted, string) {
	t.Helper()
	socket := filepath.Join(shortDir(t), "d.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	d := &scripted{rest: map[string]func(){}, changed: make(chan struct{}), pid: uint32(os.Getpid())}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.gate))
	agboxv1.RegisterSandboxServiceServer(server, d)
	agboxv1.RegisterFileServiceServer(server, uncopied{})
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		served.Wait()
	})
	return d, socket
}

// shortDir returns a folder for a socket. The path of t.TempDir may be too long.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func reject(code codes.Code, reason agboxv1.ErrorReason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason.String(), Domain: "agents-sandbox"})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func (d *scripted) gate(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	if d.refuse != nil {
		return nil, d.refuse
	}
	out, err := next(ctx, in)
	if err != nil {
		return nil, err
	}
	return proto.Clone(out.(proto.Message)), nil // it is sent without the lock
}

// await waits until a condition is true. Some call makes it true.
func (d *scripted) await(t *testing.T, what func() bool) {
	t.Helper()
	for {
		d.mu.Lock()
		ok, changed := what(), d.changed
		d.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatal("it never happened")
		}
	}
}

// notify needs mu.
func (d *scripted) notify() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *scripted) box(ref string) (*agboxv1.SandboxHandle, error) {
	for _, h := range d.boxes {
		if h.SandboxId == ref {
			return h, nil
		}
	}
	return nil, reject(codes.NotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND, fmt.Sprintf("There is no sandbox %s.", ref))
}

func (d *scripted) exec(ref string) (*agboxv1.ExecStatus, error) {
	for _, e := range d.execs {
		if e.ExecId == ref {
			return e, nil
		}
	}
	return nil, reject(codes.NotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND, fmt.Sprintf("There is no command %s.", ref))
}

// Resolve finds ids, names and beginnings of ids.
func (d *scripted) Resolve(_ context.Context, in *agboxv1.ResolveRequest) (*agboxv1.ResolveResponse, error) {
	var all []*agboxv1.Referent
	reason, what := agboxv1.ErrorReason_SANDBOX_NOT_FOUND, "sandbox"
	if in.GetKind() == ofExec {
		reason, what = agboxv1.ErrorReason_EXEC_NOT_FOUND, "command"
		for _, e := range d.execs {
			all = append(all, &agboxv1.Referent{Id: e.ExecId, Name: e.Name, SandboxId: e.SandboxId})
		}
	} else {
		for _, h := range d.boxes {
			all = append(all, &agboxv1.Referent{Id: h.SandboxId, Name: h.Name})
		}
	}
	for match, fits := range []func(*agboxv1.Referent) bool{
		agboxv1.RefMatch_REF_MATCH_ID:     func(r *agboxv1.Referent) bool { return r.Id == in.Text },
		agboxv1.RefMatch_REF_MATCH_NAME:   func(r *agboxv1.Referent) bool { return r.Name == in.Text },
		agboxv1.RefMatch_REF_MATCH_PREFIX: func(r *agboxv1.Referent) bool { return strings.HasPrefix(r.Id, in.Text) },
	} {
		out := new(agboxv1.ResolveResponse)
		for _, r := range all {
			if fits != nil && fits(r) {
				r.Match = agboxv1.RefMatch(match)
				out.Referents = append(out.Referents, r)
			}
		}
		if len(out.Referents) > 0 {
			return out, nil
		}
	}
	return nil, reject(codes.NotFound, reason, fmt.Sprintf("There is no %s %s.", what, in.Text))
}

// move needs mu.
func (d *scripted) move(h *agboxv1.SandboxHandle, kind agboxv1.EventType, state agboxv1.SandboxState, phase *agboxv1.SandboxPhaseDetails) {
	h.State = state
	h.LastEventSequence++
	ev := &agboxv1.SandboxEvent{SandboxId: h.SandboxId, Sequence: h.LastEventSequence, EventType: kind, SandboxState: state, OccurredAt: timestamppb.New(theTime)}
	if phase != nil {
		ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: phase}
	}
	d.events = append(d.events, ev)
	d.notify()
}

func (d *scripted) Ping(context.Context, *agboxv1.PingRequest) (*agboxv1.PingResponse, error) {
	return &agboxv1.PingResponse{Daemon: "agboxd", Version: "v9", Pid: d.pid, InstallId: "i1", DataDir: "/data",
		StartedAt: timestamppb.New(theTime.Add(-3 * time.Hour)),
		Engine:    &agboxv1.EngineStatus{Reachable: true, Version: "28.5.2", ApiVersion: "1.51"}}, nil
}

func (d *scripted) CreateSandbox(_ context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSandboxResponse, error) {
	if h, err := d.box(in.SandboxId); err == nil {
		return &agboxv1.CreateSandboxResponse{Sandbox: h}, nil
	}
	if d.creating != nil {
		d.creating(in)
	}
	spec := in.CreateSpec
	if slices.ContainsFunc(d.boxes, func(h *agboxv1.SandboxHandle) bool { return spec.Name != "" && h.Name == spec.Name }) {
		return nil, reject(codes.AlreadyExists, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS, "A sandbox already has the name "+spec.Name+".")
	}
	h := &agboxv1.SandboxHandle{SandboxId: in.SandboxId, Name: spec.Name, Image: spec.Image, Labels: spec.Labels, CreatedAt: timestamppb.New(theTime)}
	d.boxes = append(d.boxes, h)
	const pending = agboxv1.SandboxState_SANDBOX_STATE_PENDING
	d.move(h, agboxv1.EventType_SANDBOX_ACCEPTED, pending, &agboxv1.SandboxPhaseDetails{Name: spec.Name})
	accepted := &agboxv1.SandboxHandle{SandboxId: h.SandboxId, State: h.State, LastEventSequence: h.LastEventSequence}
	if spec.Image == "missing, after a lost answer" {
		d.prepare(h)
		return nil, status.Error(codes.Unavailable, "the connection broke off")
	}
	d.rest[h.SandboxId] = func() { d.prepare(h) }
	return &agboxv1.CreateSandboxResponse{Sandbox: accepted}, nil
}

// prepare starts a sandbox once somebody watches it.
func (d *scripted) prepare(h *agboxv1.SandboxHandle) {
	const pending = agboxv1.SandboxState_SANDBOX_STATE_PENDING
	d.move(h, agboxv1.EventType_SANDBOX_PREPARING, pending, &agboxv1.SandboxPhaseDetails{Phase: "image", Reason: "pulling " + h.Image + ", 10%"})
	d.move(h, agboxv1.EventType_SANDBOX_PREPARING, pending, &agboxv1.SandboxPhaseDetails{Phase: "image", Reason: "pulling " + h.Image + ", 90%"})
	switch h.Image {
	case "slow":
	case "missing", "missing, after a lost answer":
		h.ErrorCode, h.ErrorMessage = "IMAGE_NOT_FOUND", "There is no image missing."
		d.move(h, agboxv1.EventType_SANDBOX_FAILED, agboxv1.SandboxState_SANDBOX_STATE_FAILED, nil)
	default:
		d.move(h, agboxv1.EventType_SANDBOX_PREPARING, pending, &agboxv1.SandboxPhaseDetails{Phase: "start"})
		d.move(h, agboxv1.EventType_SANDBOX_READY, agboxv1.SandboxState_SANDBOX_STATE_READY, nil)
	}
}

func (d *scripted) GetSandbox(_ context.Context, in *agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
	h, err := d.box(in.SandboxId)
	if err != nil {
		return nil, err
	}
	out := &agboxv1.GetSandboxResponse{Sandbox: h, CreateSpec: &agboxv1.CreateSpec{Image: h.Image, Labels: h.Labels, Name: h.Name}}
	if h.Image == "ports" {
		const tcp, udp = agboxv1.PortProtocol_PORT_PROTOCOL_TCP, agboxv1.PortProtocol_PORT_PROTOCOL_UDP
		out.Containers = []*agboxv1.ContainerStatus{{Ports: []*agboxv1.PublishedPort{
			{ContainerPort: 80, Protocol: tcp, HostIp: "127.0.0.1", HostPort: 4080}, {ContainerPort: 80, Protocol: tcp, HostIp: "::1", HostPort: 4080},
			{ContainerPort: 53, Protocol: udp, HostIp: "127.0.0.1", HostPort: 4053}, {ContainerPort: 99, Protocol: tcp},
		}}}
	}
	return out, nil
}

func (d *scripted) ListSandboxes(_ context.Context, in *agboxv1.ListSandboxesRequest) (*agboxv1.ListSandboxesResponse, error) {
	out := &agboxv1.ListSandboxesResponse{}
	for _, h := range d.boxes {
		match := in.IncludeDeleted || h.State != agboxv1.SandboxState_SANDBOX_STATE_DELETED
		for k, v := range in.LabelSelector {
			match = match && h.Labels[k] == v
		}
		if match {
			out.Sandboxes = append(out.Sandboxes, h)
		}
	}
	return out, nil
}

func (d *scripted) ListImages(context.Context, *agboxv1.ListImagesRequest) (*agboxv1.ListImagesResponse, error) {
	if d.images != nil {
		return &agboxv1.ListImagesResponse{Images: d.images}, nil
	}
	return &agboxv1.ListImagesResponse{Images: []*agboxv1.Image{{Id: "sha256:1", Names: []string{"good:1"}, SizeBytes: 1_000_000}}}, nil
}

func (d *scripted) RemoveImage(_ context.Context, in *agboxv1.RemoveImageRequest) (*agboxv1.RemoveImageResponse, error) {
	for _, i := range d.images {
		if at := slices.Index(i.GetNames(), in.GetImage()); at >= 0 && in.GetOnlyUnusedBuilt() {
			i.Names = slices.Delete(i.Names, at, at+1)
			return new(agboxv1.RemoveImageResponse), nil
		}
	}
	return nil, reject(codes.NotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "there is no such image")
}

func (d *scripted) change(ref string, kind agboxv1.EventType, state agboxv1.SandboxState) (*agboxv1.AcceptedResponse, error) {
	h, err := d.box(ref)
	if err != nil {
		return nil, err
	}
	d.move(h, kind, state, nil)
	if state == agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		h.Name = ""
	}
	return &agboxv1.AcceptedResponse{Accepted: true}, nil
}

func (d *scripted) StopSandbox(_ context.Context, in *agboxv1.StopSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	return d.change(in.SandboxId, agboxv1.EventType_SANDBOX_STOPPED, agboxv1.SandboxState_SANDBOX_STATE_STOPPED)
}

func (d *scripted) RestartSandbox(ctx context.Context, in *agboxv1.RestartSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	if _, err := d.StopSandbox(ctx, &agboxv1.StopSandboxRequest{SandboxId: in.SandboxId}); err != nil {
		return nil, err
	}
	return d.ResumeSandbox(ctx, &agboxv1.ResumeSandboxRequest{SandboxId: in.SandboxId})
}

func (d *scripted) ResumeSandbox(_ context.Context, in *agboxv1.ResumeSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	return d.change(in.SandboxId, agboxv1.EventType_SANDBOX_READY, agboxv1.SandboxState_SANDBOX_STATE_READY)
}

func (d *scripted) DeleteSandbox(_ context.Context, in *agboxv1.DeleteSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	return d.change(in.SandboxId, agboxv1.EventType_SANDBOX_DELETED, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
}

func (d *scripted) SubscribeSandboxEvents(in *agboxv1.SubscribeSandboxEventsRequest, out grpc.ServerStreamingServer[agboxv1.SandboxEvent]) error {
	from := in.FromSequence
	d.mu.Lock()
	h, err := d.box(in.SandboxId)
	if err == nil && d.rest[h.SandboxId] != nil {
		d.rest[h.SandboxId]()
		delete(d.rest, h.SandboxId)
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		d.mu.Lock()
		i := slices.IndexFunc(d.events, func(ev *agboxv1.SandboxEvent) bool {
			return ev.SandboxId == h.SandboxId && ev.Sequence > from
		})
		var ev *agboxv1.SandboxEvent
		if i >= 0 {
			ev = d.events[i]
		}
		changed := d.changed
		d.mu.Unlock()
		if ev == nil {
			select {
			case <-changed:
				continue
			case <-out.Context().Done():
				return nil
			}
		}
		if err := out.Send(ev); err != nil || ev.EventType == agboxv1.EventType_SANDBOX_DELETED {
			return err
		}
		from = ev.Sequence
	}
}

func (d *scripted) WatchEvents(in *agboxv1.WatchEventsRequest, out grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error {
	d.mu.Lock()
	events := slices.Clone(d.events)
	d.mu.Unlock()
	at := in.AfterPosition
	if in.LiveOnly {
		at = uint64(len(events))
	}
	_ = out.Send(&agboxv1.WatchEventsResponse{Position: at, NewestPosition: uint64(len(events))})
	for ; at < uint64(len(events)); at++ {
		_ = out.Send(&agboxv1.WatchEventsResponse{Position: at + 1, Event: events[at]})
	}
	<-out.Context().Done()
	return nil
}

func (d *scripted) CreateExec(_ context.Context, in *agboxv1.CreateExecRequest) (*agboxv1.CreateExecResponse, error) {
	if _, err := d.box(in.SandboxId); err != nil {
		return nil, err
	}
	e := &agboxv1.ExecStatus{ExecId: in.ExecId, SandboxId: in.SandboxId, Name: in.Name, Command: in.Command, Cwd: in.Cwd, User: in.User,
		EnvOverrides: in.EnvOverrides, State: agboxv1.ExecState_EXEC_STATE_FINISHED, StartedAt: timestamppb.New(theTime)}
	switch in.Command[0] {
	case "exit":
		code, _ := strconv.Atoi(in.Command[1])
		e.ExitCode = int32(code)
	case "wait", "edit":
		e.State = agboxv1.ExecState_EXEC_STATE_RUNNING
	case "nope":
		e.State, e.ExitCode = agboxv1.ExecState_EXEC_STATE_FAILED, 127
		e.ErrorCode, e.Error = "COMMAND_NOT_FOUND", "nope was not found in the sandbox."
	case "lost":
		e.State, e.ErrorCode, e.Error = agboxv1.ExecState_EXEC_STATE_FAILED, "EXEC_LOST", "The host went away under the command."
	}
	d.execs = append(d.execs, e)
	d.notify()
	return &agboxv1.CreateExecResponse{ExecId: e.ExecId}, nil
}

func (d *scripted) GetExec(_ context.Context, in *agboxv1.GetExecRequest) (*agboxv1.GetExecResponse, error) {
	e, err := d.exec(in.ExecId)
	return &agboxv1.GetExecResponse{Exec: e}, err
}

func (d *scripted) ListActiveExecs(_ context.Context, in *agboxv1.ListActiveExecsRequest) (*agboxv1.ListActiveExecsResponse, error) {
	out := &agboxv1.ListActiveExecsResponse{}
	for _, e := range d.execs {
		if (in.SandboxId == nil || in.GetSandboxId() == e.SandboxId) && e.State == agboxv1.ExecState_EXEC_STATE_RUNNING {
			out.Execs = append(out.Execs, e)
		}
	}
	return out, nil
}

func (d *scripted) ListExecs(_ context.Context, in *agboxv1.ListExecsRequest) (*agboxv1.ListExecsResponse, error) {
	h, err := d.box(in.SandboxId)
	if err != nil {
		return nil, err
	}
	out := &agboxv1.ListExecsResponse{}
	for _, e := range d.execs {
		if e.SandboxId == h.SandboxId {
			out.Execs = append(out.Execs, e)
		}
	}
	return out, nil
}

func (d *scripted) SignalExec(_ context.Context, in *agboxv1.SignalExecRequest) (*agboxv1.AcceptedResponse, error) {
	e, err := d.exec(in.ExecId)
	if err != nil {
		return nil, err
	}
	d.signals = append(d.signals, in.Signal)
	// "wait stubborn" ignores the interrupt, "wait patient" the first signal.
	if !(slices.Contains(e.Command, "stubborn") && in.Signal == 2) && !(slices.Contains(e.Command, "patient") && len(d.signals) == 1) {
		e.State, e.Signal, e.ExitCode = agboxv1.ExecState_EXEC_STATE_FINISHED, in.Signal, 128+in.Signal
	}
	d.notify()
	return &agboxv1.AcceptedResponse{Accepted: true}, nil
}

func (d *scripted) CancelExec(_ context.Context, in *agboxv1.CancelExecRequest) (*agboxv1.AcceptedResponse, error) {
	e, err := d.exec(in.ExecId)
	if err != nil {
		return nil, err
	}
	if e.State != agboxv1.ExecState_EXEC_STATE_RUNNING {
		return nil, reject(codes.FailedPrecondition, agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL, fmt.Sprintf("Command %s has ended.", in.ExecId))
	}
	e.State, e.Signal, e.ExitCode, e.Error = agboxv1.ExecState_EXEC_STATE_CANCELLED, 15, 143, "The command was cancelled."
	d.notify()
	return &agboxv1.AcceptedResponse{Accepted: true}, nil
}

// RunExec combines its parts.
func (d *scripted) RunExec(in *agboxv1.CreateExecRequest, out grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error {
	d.mu.Lock()
	created, err := d.CreateExec(out.Context(), in)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if err := out.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Created{Created: created}}); err != nil {
		return err
	}
	return d.FollowExecLogs(&agboxv1.FollowExecLogsRequest{ExecId: created.GetExecId(), Follow: true}, out)
}

func (d *scripted) FollowExecLogs(in *agboxv1.FollowExecLogsRequest, out grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error {
	d.mu.Lock()
	e, err := d.exec(in.ExecId)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	for i, text := range outputOf(e) {
		if text != "" {
			_ = out.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Chunk{
				Chunk: &agboxv1.LogChunk{Stream: agboxv1.LogStream(i + 1), Data: []byte(text), Time: timestamppb.New(theTime)}}})
		}
	}
	for {
		d.mu.Lock()
		end := &agboxv1.LogEnd{Exec: &agboxv1.ExecStatus{ExecId: e.ExecId, State: e.State, ExitCode: e.ExitCode, Signal: e.Signal, ErrorCode: e.ErrorCode, Error: e.Error}}
		changed := d.changed
		d.mu.Unlock()
		if end.Exec.State != agboxv1.ExecState_EXEC_STATE_RUNNING || !in.Follow {
			return out.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_End{End: end}})
		}
		select {
		case <-changed:
		case <-out.Context().Done():
			return nil
		}
	}
}

func (d *scripted) AttachExec(stream grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return d.attached(stream)
}

// outputOf returns what a command wrote to stdout and stderr.
func outputOf(e *agboxv1.ExecStatus) [2]string {
	switch e.Command[0] {
	case "say":
		return [2]string{strings.Join(e.Command[1:], " ") + "\n", "aside\n"}
	case "wait":
		return [2]string{"waiting\n", ""}
	case "edit":
		return [2]string{"\x1b[?1049h\x1b[?25l\x1b[?1000h", ""}
	}
	return [2]string{}
}
