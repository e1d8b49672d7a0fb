package client

import (
	"context"
	"errors"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// feed is a server stream that can be opened again where it broke off.
type feed[T any] struct {
	// open starts the stream at the present cursor.
	open func(context.Context, agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[T], error)
	// take consumes one message and moves the cursor. It says done after the
	// last one, or when the reader wants no more; an error ends the feed too.
	take func(*T) (done bool, err error)
	// closes says that the daemon may end the stream with success.
	closes bool
}

// run reads until the feed is over. A lost connection is made again within the
// client's bound, which starts anew with every message that arrives.
func (f feed[T]) run(ctx context.Context, c *Client) error {
	wait := c.newPatience(ctx)
	for {
		api, err := c.open(ctx)
		if err != nil {
			return err
		}
		got, err := f.once(ctx, api)
		if err == nil {
			return nil
		}
		if got {
			c.answered.Store(true)
			wait.reset()
		}
		e := c.decode(ctx, err)
		if got && e.Reason == agboxv1.ErrorReason_OVERLOADED.String() {
			// The daemon drops a reader that is slower than its buffer; the cursor is good.
			continue
		}
		if err := wait.again(ctx, e); err != nil {
			return err
		}
	}
}

// once reads one stream to its end; nil means that the feed is over. got tells
// whether anything arrived.
func (f feed[T]) once(ctx context.Context, api agboxv1.SandboxServiceClient) (got bool, err error) {
	// Leaving the loop must free the stream on the daemon's side too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.open(ctx, api)
	if err != nil {
		return false, err
	}
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
