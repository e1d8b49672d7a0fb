package client

import (
	"context"
	"errors"
	"io"
	"sync"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

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
	api, err := c.open(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	stream, err := api.ExecInService(ctx)
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
