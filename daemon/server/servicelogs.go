package server

import (
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/runtime"
)

// ServiceLogs streams what a service has put out itself.
func (s *Server) ServiceLogs(req *agboxv1.ServiceLogsRequest, stream grpc.ServerStreamingServer[agboxv1.ServiceLogsResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	sb, err := s.Ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		cancel()
		return err
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	stopping := errors.New("the daemon stops")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watch.Go(func() {
		select {
		case <-s.stopping:
			stop(stopping)
		case <-ctx.Done():
		}
	})
	err = s.Loop.ServiceLogs(ctx, sb, req.GetService(), runtime.LogOptions{Tail: int(req.GetTailLines()), Follow: req.GetFollow()},
		serviceOutput{stream, agboxv1.LogStream_LOG_STREAM_STDOUT}, serviceOutput{stream, agboxv1.LogStream_LOG_STREAM_STDERR})
	if errors.Is(context.Cause(ctx), stopping) {
		return errStopping()
	}
	return err
}

// serviceOutput sends what is written to it as one stream of a service. Its two
// writers take turns: they are written to by one goroutine.
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
