package server

import (
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// serviceStream is the stream of ExecInService.
type serviceStream = grpc.BidiStreamingServer[agboxv1.ExecInServiceRequest, agboxv1.ExecInServiceResponse]

// ExecInService runs a command in the container of a service. A second goroutine receives what
// the client sends, and forwards one message before it receives the next, so that a client
// that sends faster than the command reads is slowed down.
func (s *sandboxCalls) ExecInService(stream serviceStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return invalid("The first message of the call must be open: it names the service and the command.")
	}
	ctx, cancel := s.life.context(stream.Context())
	defer cancel()
	sb, err := s.ledger.FindSandbox(ctx, open.GetSandboxId())
	if err != nil {
		return err
	}
	sizes := make(chan runtime.TerminalSize, 1)
	input, typed := io.Pipe()
	defer input.Close() // later input is received, and dropped
	replies := &serviceReplies{stream: stream}
	streams := runtime.ContainerStreams{
		Stdout: commandOutput{replies, agboxv1.LogStream_LOG_STREAM_STDOUT}, Stderr: commandOutput{replies, agboxv1.LogStream_LOG_STREAM_STDERR}, Sizes: sizes,
	}
	if open.GetStdin() {
		streams.Stdin = input
	} else {
		_ = input.Close()
	}
	// Receive ends with the stream, and the stream with this handler: Server.Stop waits.
	s.life.receivers.Go(func() { receiveForService(stream, typed, sizes) })
	code, err := s.loop.ExecInService(ctx, sb, open.GetService(), containerCommand(open), streams)
	if cause := stopped(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	exit := int32(code)
	return replies.send(&agboxv1.ExecInServiceResponse{ExitCode: &exit})
}

func containerCommand(open *agboxv1.ServiceCommand) runtime.ContainerCommand {
	c := runtime.ContainerCommand{Args: open.GetCommand(), Dir: open.GetCwd(), User: open.GetUser(), TTY: open.GetTty(), Size: sizeOf(open.GetTerminalSize())}
	for name, value := range open.GetEnv() {
		c.Env = append(c.Env, name+"="+value)
	}
	return c
}

func sizeOf(size *agboxv1.TerminalSize) runtime.TerminalSize {
	return runtime.TerminalSize{Rows: uint(size.GetRows()), Columns: uint(size.GetColumns())}
}

// receiveForService forwards input and sizes until the stream ends. A client that closes its
// side has typed everything; a lost one ends the input too.
func receiveForService(stream serviceStream, typed *io.PipeWriter, sizes chan runtime.TerminalSize) {
	defer typed.Close()
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		if size := m.GetResize(); size != nil {
			select {
			case <-sizes: // only the newest counts
			default:
			}
			sizes <- sizeOf(size)
		}
		if len(m.GetInput()) > 0 {
			_, _ = typed.Write(m.GetInput()) // a command that has ended reads nothing
		}
	}
}

// serviceReplies is the daemon's side of ExecInService.
type serviceReplies struct {
	stream serviceStream
	// sending is for Send.
	// Held across I/O: a stream takes one message at a time.
	sending sync.Mutex
}

func (r *serviceReplies) send(m *agboxv1.ExecInServiceResponse) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	return r.stream.Send(m)
}

// commandOutput sends what is written to it as one stream of a command.
type commandOutput struct {
	to   *serviceReplies
	kind agboxv1.LogStream
}

func (o commandOutput) Write(p []byte) (n int, err error) {
	for len(p[n:]) > 0 {
		end := min(n+serviceChunk, len(p))
		if err := o.to.send(&agboxv1.ExecInServiceResponse{Stream: o.kind, Data: p[n:end]}); err != nil {
			return n, err
		}
		n = end
	}
	return n, nil
}

// ServiceLogs streams the output of a service.
func (s *sandboxCalls) ServiceLogs(req *agboxv1.ServiceLogsRequest, stream grpc.ServerStreamingServer[agboxv1.ServiceLogsResponse]) error {
	ctx, cancel := s.life.context(stream.Context())
	defer cancel()
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return err
	}
	err = s.loop.ServiceLogs(ctx, sb, req.GetService(), runtime.LogOptions{Tail: int(req.GetTailLines()), Follow: req.GetFollow()},
		serviceOutput{stream, agboxv1.LogStream_LOG_STREAM_STDOUT}, serviceOutput{stream, agboxv1.LogStream_LOG_STREAM_STDERR})
	if cause := stopped(ctx); cause != nil {
		return cause
	}
	return err
}

// serviceOutput sends what is written to it as one stream of a service. Its two writers
// are used by one goroutine, so they never run concurrently.
type serviceOutput struct {
	stream grpc.ServerStreamingServer[agboxv1.ServiceLogsResponse]
	kind   agboxv1.LogStream
}

// serviceChunk bounds one message.
const serviceChunk = 64 << 10

func (o serviceOutput) Write(p []byte) (int, error) {
	for chunk := range slices.Chunk(p, serviceChunk) {
		if err := o.stream.Send(&agboxv1.ServiceLogsResponse{Stream: o.kind, Data: slices.Clone(chunk)}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
