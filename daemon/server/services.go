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
	// sending is for Send.
	// Held across I/O: a stream takes one message at a time.
	var sending sync.Mutex
	send := func(m *agboxv1.ExecInServiceResponse) error {
		sending.Lock()
		defer sending.Unlock()
		return stream.Send(m)
	}
	output := func(kind agboxv1.LogStream) io.Writer {
		return serviceOutput(func(data []byte) error { return send(&agboxv1.ExecInServiceResponse{Stream: kind, Data: data}) })
	}
	streams := runtime.ContainerStreams{
		Stdout: output(agboxv1.LogStream_LOG_STREAM_STDOUT), Stderr: output(agboxv1.LogStream_LOG_STREAM_STDERR), Sizes: sizes,
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
	return send(&agboxv1.ExecInServiceResponse{ExitCode: &exit})
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

// ServiceLogs streams the output of a service.
func (s *sandboxCalls) ServiceLogs(req *agboxv1.ServiceLogsRequest, stream grpc.ServerStreamingServer[agboxv1.ServiceLogsResponse]) error {
	ctx, cancel := s.life.context(stream.Context())
	defer cancel()
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return err
	}
	// Its two writers are used by one goroutine, so they never run concurrently.
	output := func(kind agboxv1.LogStream) io.Writer {
		return serviceOutput(func(data []byte) error { return stream.Send(&agboxv1.ServiceLogsResponse{Stream: kind, Data: data}) })
	}
	err = s.loop.ServiceLogs(ctx, sb, req.GetService(), runtime.LogOptions{Tail: int(req.GetTailLines()), Follow: req.GetFollow()},
		output(agboxv1.LogStream_LOG_STREAM_STDOUT), output(agboxv1.LogStream_LOG_STREAM_STDERR))
	if cause := stopped(ctx); cause != nil {
		return cause
	}
	return err
}

// serviceChunk bounds one message.
const serviceChunk = 64 << 10

// serviceOutput sends what is written to it in messages.
type serviceOutput func(data []byte) error

func (send serviceOutput) Write(p []byte) (n int, err error) {
	for chunk := range slices.Chunk(p, serviceChunk) {
		if err := send(slices.Clone(chunk)); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}
