package client

import (
	"context"
	"errors"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// feed is a server stream that can be resumed where it broke.
type feed[T any] struct {
	// open starts the stream at the current cursor.
	open func(context.Context, agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[T], error)
	// take handles one message and advances the cursor. It returns done after the last
	// message, or if the reader wants no more. An error also ends the feed.
	take func(*T) (done bool, err error)
	// closes means that the daemon may end the stream without an error.
	closes bool
}

// run reads until the feed ends. It reconnects within the client's bound, which starts
// again with every message.
func (f feed[T]) run(ctx context.Context, c *Client) error {
	wait := c.newFollower()
	for {
		api, err := c.open(ctx)
		if err != nil {
			return err
		}
		got, err := f.once(ctx, api, func() { c.answered.Store(true); wait.reached() })
		if err == nil {
			return nil
		}
		if got {
			wait.reset()
		}
		e := c.decode(ctx, err)
		if got && e.Reason == agboxv1.ErrorReason_OVERLOADED.String() {
			// The daemon drops a reader whose buffer is full. The cursor is still valid.
			continue
		}
		if err := wait.again(ctx, e); err != nil {
			return err
		}
	}
}

// once reads one stream to its end. A nil error means that the feed has ended. got
// reports whether a message arrived. opened is called when the stream is open: gRPC opens
// it only on a connection on which a daemon has answered, and a message may take long.
func (f feed[T]) once(ctx context.Context, api agboxv1.SandboxServiceClient, opened func()) (got bool, err error) {
	// Leaving the loop must also free the stream in the daemon.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.open(ctx, api)
	if err != nil {
		return false, err
	}
	opened()
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && f.closes:
			return got, nil
		case errors.Is(err, io.EOF):
			return got, &Error{Code: codes.Unavailable, Message: "agboxd ended the stream too early.", cause: ErrDaemonUnreachable, lost: true}
		case err != nil:
			return got, err
		}
		got = true
		if done, err := f.take(m); done || err != nil {
			return got, err
		}
	}
}
