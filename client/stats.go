package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Stats yields the resource usage of the containers of the given sandboxes, or of all if
// none is given, every second. It continues if the daemon restarts. It ends with an
// error, when the caller ends its loop, when none of the given sandboxes exists any more,
// or, with once, after the first item.
func (c *Client) Stats(ctx context.Context, sandboxes []string, once bool) iter.Seq2[*agboxv1.WatchStatsResponse, error] {
	return func(yield func(*agboxv1.WatchStatsResponse, error) bool) {
		f := feed[agboxv1.WatchStatsResponse]{
			closes: true,
			open: func(ctx context.Context, api agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.WatchStatsResponse], error) {
				return api.WatchStats(ctx, &agboxv1.WatchStatsRequest{SandboxIds: sandboxes, Once: once})
			},
			take: func(m *agboxv1.WatchStatsResponse) (bool, error) { return !yield(m, nil) || once, nil },
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}

// Processes lists the processes in the primary of a READY sandbox.
func (c *Client) Processes(ctx context.Context, sandbox string) (*agboxv1.ListProcessesResponse, error) {
	in := &agboxv1.ListProcessesRequest{SandboxId: sandbox}
	return unary(ctx, c, agboxv1.SandboxServiceClient.ListProcesses, in, idempotent)
}
