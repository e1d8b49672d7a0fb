package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// sequence yields what read gives, and as the last item the error of read. After give has
// returned false, read must return nil.
func sequence[V any](read func(give func(V) bool) error) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		if err := read(func(one V) bool { return yield(one, nil) }); err != nil {
			var none V
			yield(none, err)
		}
	}
}

// pages gives what a list has, page by page. next returns one page, and whether there are more.
func pages[V any](give func(V) bool, next func() (page []V, more bool, err error)) error {
	for {
		page, more, err := next()
		if err != nil {
			return err
		}
		for _, one := range page {
			if !give(one) {
				return nil
			}
		}
		if !more {
			return nil
		}
	}
}

// ending says whether the daemon may end a stream without an error.
type ending bool

const (
	endless ending = false
	ends    ending = true
)

// opening is a method of a generated client that opens a server stream.
type opening[Req, T any] = func(context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[T], error)

// follow reads a server stream and resumes it where it broke. request returns the request for what
// comes next. take handles one message. It returns done after the last message, or if the reader wants
// no more. An error also ends the stream. follow reconnects within the client's bound, which starts
// again with every message; the time in which a daemon serves makes up for time without one.
func follow[Req, T any](ctx context.Context, c *Client, m opening[Req, T], end ending, request func() *Req, take func(*T) (done bool, err error)) error {
	wait := c.newFollower()
	var opened time.Time
	open := func(ctx context.Context, in *Req, _ ...grpc.CallOption) (grpc.ServerStreamingClient[T], error) {
		stream, err := m(ctx, in)
		opened = time.Time{}
		if err == nil {
			opened = time.Now()
			// gRPC opens a stream only on a connection on which a daemon has answered, and
			// a message may take long.
			c.answered.Store(true)
			wait.reached()
		}
		return stream, err
	}
	for {
		if err := c.Connect(ctx); err != nil {
			return err
		}
		got, err := readStream(ctx, open, request(), end, take)
		if err == nil {
			return nil
		}
		if got {
			wait.reset()
		}
		e := c.decode(ctx, err)
		if !opened.IsZero() && e.away() {
			wait.served(time.Since(opened))
		}
		if got && e.Reason == agboxv1.ErrorReason_OVERLOADED.String() {
			// The daemon drops a reader whose buffer is full. The cursor is still valid.
			continue
		}
		if err := wait.again(ctx, e); err != nil {
			return err
		}
	}
}

// readStream reads one stream to its end, as follow does. A nil error means that there is no more
// to follow. got reports whether a message arrived.
func readStream[Req, T any](ctx context.Context, open opening[Req, T], in *Req, end ending, take func(*T) (done bool, err error)) (got bool, err error) {
	// Leaving the loop must also free the stream in the daemon.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx, in)
	if err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && end == ends:
			return got, nil
		case errors.Is(err, io.EOF):
			return got, &Error{Code: codes.Unavailable, Message: "agboxd ended the stream too early.", cause: ErrDaemonUnreachable, lost: true}
		case err != nil:
			return got, err
		}
		got = true
		if done, err := take(m); done || err != nil {
			return got, err
		}
	}
}

// NewID returns a random id for a sandbox or an exec. A caller that chooses the id itself
// knows it even if the answer to its request is lost.
func NewID() string { return ids.New() }

// repeatableSandbox returns the request with a request key, so that it can be repeated
// after a lost answer. The key is the id if the caller gave no key. Who gave no id may get any.
func repeatableSandbox(in *agboxv1.CreateSandboxRequest) *agboxv1.CreateSandboxRequest {
	in = proto.CloneOf(in)
	in.AnyId = in.GetAnyId() || in.GetSandboxId() == ""
	in.SandboxId, in.RequestKey = idAndKey(in.GetSandboxId(), in.GetRequestKey())
	return in
}

// repeatableExec is repeatableSandbox for an exec.
func repeatableExec(in *agboxv1.CreateExecRequest) *agboxv1.CreateExecRequest {
	in = proto.CloneOf(in)
	in.ExecId, in.RequestKey = idAndKey(in.GetExecId(), in.GetRequestKey())
	return in
}

// idAndKey sets what is missing. The daemon gives the same id to a request with only a
// key.
func idAndKey(id, key string) (string, string) {
	switch {
	case id == "" && key == "":
		id = ids.New()
	case id == "":
		return ids.OfKey(key), key
	}
	if key == "" {
		key = id
	}
	return id, key
}
