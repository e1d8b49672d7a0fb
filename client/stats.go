package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Stats tells every second what the containers of sandboxes use, of all of them if
// none is named. It goes on over a restart of the daemon, and ends with an error,
// with the loop of the reader, when none of the named sandboxes is left, or, with
// once, after the first item.
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
