package server

import (
	"slices"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/runtime"
)

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
