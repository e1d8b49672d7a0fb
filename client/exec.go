package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// DefaultGrace selects the daemon's default time between SIGTERM and SIGKILL.
const DefaultGrace time.Duration = -1

// CreateExec starts a command and returns when it runs or has failed to start. GetExec
// and FollowLogs tell which. It sets exec_id and request_key if they are empty, so
// repeating the call after a lost answer does not start a second process.
func (c *Client) CreateExec(ctx context.Context, in *agboxv1.CreateExecRequest) (*agboxv1.CreateExecResponse, error) {
	return c.sandboxes.CreateExec(ctx, repeatableExec(in), idempotent)
}

// CancelExec ends a running exec: SIGTERM to its process group and, after the grace
// period, SIGKILL to the rest of its process tree. A negative grace means the daemon's
// default. If the exec has ended, the error is ErrWrongState.
func (c *Client) CancelExec(ctx context.Context, exec string, grace time.Duration) error {
	in := &agboxv1.CancelExecRequest{ExecId: exec}
	if grace >= 0 {
		in.Grace = durationpb.New(grace)
	}
	_, err := c.sandboxes.CancelExec(ctx, in, idempotent)
	return err
}

// SignalExec sends a signal, at most once, to the process group of a running exec.
func (c *Client) SignalExec(ctx context.Context, exec string, sig syscall.Signal) error {
	_, err := c.sandboxes.SignalExec(ctx, &agboxv1.SignalExecRequest{ExecId: exec, Signal: int32(sig)})
	return err
}

// GetExec returns one exec, running or finished.
func (c *Client) GetExec(ctx context.Context, exec string) (*agboxv1.ExecStatus, error) {
	out, err := c.sandboxes.GetExec(ctx, &agboxv1.GetExecRequest{ExecId: exec}, idempotent)
	return out.GetExec(), err
}

// ListActiveExecs returns the running execs of one sandbox, or of all if sandbox is
// empty, newest first. It includes the sandbox's own command.
func (c *Client) ListActiveExecs(ctx context.Context, sandbox string) ([]*agboxv1.ExecStatus, error) {
	in := &agboxv1.ListActiveExecsRequest{IncludeMain: true}
	if sandbox != "" {
		in.SandboxId = &sandbox
	}
	out, err := c.sandboxes.ListActiveExecs(ctx, in, idempotent)
	return out.GetExecs(), err
}

// ListExecs yields all execs of a sandbox, running and finished, ordered by exec id. It
// fetches page by page. An error ends it.
func (c *Client) ListExecs(ctx context.Context, sandbox string) iter.Seq2[*agboxv1.ExecStatus, error] {
	return sequence(func(give func(*agboxv1.ExecStatus) bool) error {
		in := &agboxv1.ListExecsRequest{SandboxId: sandbox}
		return pages(give, func() ([]*agboxv1.ExecStatus, bool, error) {
			out, err := c.sandboxes.ListExecs(ctx, in, idempotent)
			in.PageToken = out.GetNextPageToken()
			return out.GetExecs(), in.PageToken != "", err
		})
	})
}

// ExitStatus describes how a command ended.
type ExitStatus struct {
	// Code is the exit code of the process, or 128 + Signal if a signal ended it.
	Code int
	// Signal is the signal that ended the process, or 0 if it exited.
	Signal int
	// Exec is the complete record.
	Exec *agboxv1.ExecStatus
	// Notice is a message for readers of the output. It is usually empty.
	Notice string
}

// Run runs a command and copies its output while it runs. It leaves out gaps in the
// output; the counts in ExitStatus.Exec include them. The error is nil if the process ran
// and its status is known, whatever the exit code, and also if it was cancelled. If ctx
// ends, Run stops copying and the command continues. CancelExec ends it.
func (c *Client) Run(ctx context.Context, in *agboxv1.CreateExecRequest, stdout, stderr io.Writer) (ExitStatus, error) {
	return copyItems(c.RunLogs(ctx, in), stdout, stderr)
}

// CopyOutput copies the output of an exec from the beginning until it has ended, and
// returns its status as Run does. An error of a writer ends it.
func (c *Client) CopyOutput(ctx context.Context, exec string, stdout, stderr io.Writer) (ExitStatus, error) {
	return copyItems(c.FollowLogs(ctx, exec, LogOptions{Follow: true}), stdout, stderr)
}

func copyItems(items iter.Seq2[LogItem, error], stdout, stderr io.Writer) (ExitStatus, error) {
	for item, err := range items {
		switch {
		case err != nil:
			return ExitStatus{}, err
		case item.End != nil:
			return exitStatus(item.End)
		case item.Created != nil, item.Dropped > 0:
			continue
		case item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR:
			_, err = stderr.Write(item.Data)
		default:
			_, err = stdout.Write(item.Data)
		}
		if err != nil {
			return ExitStatus{}, err
		}
	}
	return ExitStatus{}, &Error{Code: codes.Internal, Message: "The output ended without an exit status."}
}

func exitStatus(end *agboxv1.LogEnd) (ExitStatus, error) {
	e := end.GetExec()
	st := ExitStatus{Code: int(e.GetExitCode()), Signal: int(e.GetSignal()), Exec: e, Notice: end.GetNotice()}
	if e.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		return st, &Error{Code: codes.Internal, Message: fmt.Sprintf("agboxd ended the output of exec %s while the exec runs.", e.GetExecId())}
	}
	return st, ExecError(e)
}

// ServiceStreams are the streams of a command in a service.
type ServiceStreams struct {
	// Input has the bytes that are typed or piped. A nil channel means no input; when it is
	// closed, the command sees the end of its input.
	Input <-chan []byte
	// Stdout has all output of a terminal.
	Stdout, Stderr io.Writer
	// Sizes has the new sizes of the terminal. nil means that it keeps its size.
	Sizes <-chan *agboxv1.TerminalSize
}

// ExecInService runs a command in the container of a running service, and returns its exit
// code. It is not resumed if the connection breaks: the engine runs the command, and agbox
// keeps nothing of it. If ctx ends, the input of the command ends, and it may go on.
func (c *Client) ExecInService(ctx context.Context, command *agboxv1.ServiceCommand, streams ServiceStreams) (exitCode int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	stream, err := c.sandboxes.ExecInService(ctx)
	if err == nil {
		// A failed send means that Recv has the reason.
		_ = stream.Send(&agboxv1.ExecInServiceRequest{Item: &agboxv1.ExecInServiceRequest_Open{Open: command}})
		sender.Go(func() { sendToService(ctx, stream, streams) })
	}
	for err == nil {
		var m *agboxv1.ExecInServiceResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		c.answered.Store(true)
		if m.ExitCode != nil {
			return int(m.GetExitCode()), nil
		}
		out := streams.Stdout
		if m.GetStream() == agboxv1.LogStream_LOG_STREAM_STDERR {
			out = streams.Stderr
		}
		if _, failed := out.Write(m.GetData()); failed != nil {
			return 0, failed
		}
	}
	if errors.Is(err, io.EOF) {
		return 0, &Error{Code: codes.Internal, Message: "agboxd ended the call without the exit code of the command. Look at its log."}
	}
	return 0, c.decode(ctx, err)
}

// sendToService sends input and sizes until ctx ends.
func sendToService(ctx context.Context, stream grpc.BidiStreamingClient[agboxv1.ExecInServiceRequest, agboxv1.ExecInServiceResponse], streams ServiceStreams) {
	for {
		m := &agboxv1.ExecInServiceRequest{}
		select {
		case data, more := <-streams.Input:
			if !more {
				_ = stream.CloseSend()
				return
			}
			m.Item = &agboxv1.ExecInServiceRequest_Input{Input: data}
		case size := <-streams.Sizes:
			m.Item = &agboxv1.ExecInServiceRequest_Resize{Resize: size}
		case <-ctx.Done():
			return
		}
		if stream.Send(m) != nil {
			return // Recv has the reason
		}
	}
}

// ServiceLogs writes the output of a service, as far as the engine keeps it. With follow
// set it returns when the service's container ends. It is not resumed if the connection
// breaks, because the engine has no cursors.
func (c *Client) ServiceLogs(ctx context.Context, in *agboxv1.ServiceLogsRequest, stdout, stderr io.Writer) error {
	var sink error
	_, err := readStream(ctx, c.sandboxes.ServiceLogs, in, ends, func(piece *agboxv1.ServiceLogsResponse) (bool, error) {
		out := stdout
		if piece.GetStream() == agboxv1.LogStream_LOG_STREAM_STDERR {
			out = stderr
		}
		_, sink = out.Write(piece.GetData())
		return false, sink
	})
	switch {
	case sink != nil:
		return sink
	case err != nil:
		return c.decode(ctx, err)
	}
	return nil
}
