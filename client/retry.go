package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// repeat says whether a call whose result is unknown may be repeated.
type repeat bool

const (
	// idempotent calls may reach the daemon twice.
	idempotent repeat = true
	// atMostOnce calls are repeated only if they were certainly not executed.
	atMostOnce repeat = false
)

// unary makes a call. If the daemon goes away, it repeats the call within the client's
// bound, provided that repeating is harmless. m is a method expression of a generated client.
func unary[API, Req, Resp any](ctx context.Context, c *Client, m func(API, context.Context, *Req, ...grpc.CallOption) (*Resp, error), in *Req, r repeat) (out *Resp, err error) {
	err = repeated(ctx, c, c.newPatience(), func(api API) (again bool, err error) {
		var to peer.Peer
		out, err = m(api, ctx, in, grpc.Peer(&to))
		// gRPC sets the peer only if the call reached a connection.
		return r == idempotent || to.Addr == nil, err
	})
	return out, err
}

// repeated calls once until it succeeds. It repeats the call while the daemon is away if once
// returns again. once resets wait after progress.
func repeated[API any](ctx context.Context, c *Client, wait *patience, once func(API) (again bool, err error)) error {
	for {
		api, err := service[API](ctx, c)
		if err != nil {
			return err
		}
		again, err := once(api)
		if err == nil {
			c.answered.Store(true)
			wait.reached()
			return nil
		}
		e := c.decode(ctx, err)
		if !again && e.Reason != agboxv1.ErrorReason_DAEMON_STOPPING.String() {
			return e
		}
		if err := wait.again(ctx, e); err != nil {
			return err
		}
	}
}

// patience paces the retries after the daemon was lost, and bounds them.
type patience struct {
	bound time.Duration
	// since is the time of the first of consecutive failures. It is zero if there is
	// none.
	since time.Time
	pause time.Duration
	// socket is named in the error after the last retry.
	socket string
	// restart starts a daemon after a crash. If nil, the client only waits.
	restart func(context.Context) error
	// follows means that failed starts do not end the retries: somebody else may start a
	// daemon. Otherwise the second one in a row does; the reason of one may pass.
	follows bool
	// failed is why the last start failed, nil if it did not; nextStart is when to try again.
	failed    error
	nextStart time.Time
	// stopping means that the daemon was stopped on purpose, so it did not crash.
	stopping bool
	outages  *outages
}

func (c *Client) newPatience() *patience {
	return &patience{bound: c.reconnect, socket: c.socket, restart: c.autostart, outages: &c.outages}
}

// newFollower is newPatience for a stream that follows something.
func (c *Client) newFollower() *patience {
	p := c.newPatience()
	p.follows = true
	return p
}

// reset forgets the failures after progress.
func (p *patience) reset() {
	p.since, p.pause, p.stopping, p.failed, p.nextStart = time.Time{}, 0, false, nil, time.Time{}
	p.reached()
}

// reached is called when a daemon has answered.
func (p *patience) reached() { p.outages.end() }

// again pauses and returns nil if the call that failed with e should be retried.
// Otherwise it returns the error for the caller.
func (p *patience) again(ctx context.Context, e *Error) error {
	bound := p.boundFor(e)
	if bound == 0 {
		return e
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since, p.pause = now, firstPause
	}
	switch stops := e.Reason == agboxv1.ErrorReason_DAEMON_STOPPING.String(); {
	case stops, e.lost:
		p.stopping = p.stopping || stops
		if err := p.lost(ctx, now); err != nil {
			return err
		}
	default:
		p.reached()
		p.failed = nil
	}
	if now.Sub(p.since)+p.pause > bound {
		return p.exhausted(e)
	}
	timer := time.NewTimer(p.pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ended(ctx.Err())
	case <-timer.C:
		p.pause = min(2*p.pause, longestPause)
		return nil
	}
}

// lost handles a failure for which the daemon is gone: it tells of it and starts a daemon
// if one may be started. An error ends the retries.
func (p *patience) lost(ctx context.Context, now time.Time) error {
	// A daemon that is stopped removes its socket; one that crashes leaves it.
	if _, err := os.Lstat(p.socket); errors.Is(err, fs.ErrNotExist) {
		p.stopping = true
	}
	news := Outage{Stopped: p.stopping, Wait: p.bound - now.Sub(p.since)}
	if p.stopping || p.restart == nil {
		p.outages.begin(p.since, outageAfter, news)
		return nil
	}
	if now.Sub(p.since) < restartAfter || now.Before(p.nextStart) {
		return nil
	}
	news.Starting = true
	p.outages.begin(p.since, restartAfter, news)
	p.nextStart = now.Add(startAgainAfter)
	within, cancel := context.WithTimeout(ctx, p.bound-now.Sub(p.since))
	defer cancel()
	err := p.restart(within)
	var own *Error
	switch {
	case err == nil:
		p.failed = nil
		return nil
	case errors.As(err, &own) && own.lost:
		return nil
	case ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return nil // only the bound has ended it
	case p.failed != nil && !p.follows:
		return err
	}
	p.failed = err
	p.outages.startFailed(Outage{Failed: err, Wait: p.bound - time.Since(p.since)})
	return nil
}

// boundFor returns how long to retry after e. 0 means no retry.
func (p *patience) boundFor(e *Error) time.Duration {
	switch {
	case e.lost, e.Reason == agboxv1.ErrorReason_DAEMON_STOPPING.String():
		return p.bound
	case e.Reason == agboxv1.ErrorReason_SANDBOX_UNREACHABLE.String():
		return min(p.bound, recoveryBound)
	}
	return 0
}

func (p *patience) exhausted(e *Error) error {
	if e.Reason == agboxv1.ErrorReason_SANDBOX_UNREACHABLE.String() {
		return e
	}
	remedy := "Start it with `agbox daemon start`."
	if p.failed != nil {
		remedy = p.failed.Error()
	}
	message := fmt.Sprintf("agboxd at %s went away and did not come back within %v; commands in the sandboxes keep running. %s", p.socket, p.bound, remedy)
	return &Error{Code: codes.Unavailable, Reason: e.Reason, Message: message, cause: ErrDaemonUnreachable}
}

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

// ending says whether the daemon may end a stream without an error.
type ending bool

const (
	endless ending = false
	ends    ending = true
)

// follow reads a server stream and resumes it where it broke. m is a method expression of a
// generated client. request returns the request for what comes next. take handles one message.
// It returns done after the last message, or if the reader wants no more. An error also ends the
// stream. follow reconnects within the client's bound, which starts again with every message.
func follow[API, Req, T any](ctx context.Context, c *Client, m func(API, context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[T], error),
	end ending, request func() *Req, take func(*T) (done bool, err error)) error {
	wait := c.newFollower()
	for {
		api, err := service[API](ctx, c)
		if err != nil {
			return err
		}
		open := func(api API, ctx context.Context, in *Req, _ ...grpc.CallOption) (grpc.ServerStreamingClient[T], error) {
			stream, err := m(api, ctx, in)
			if err == nil {
				// gRPC opens a stream only on a connection on which a daemon has answered, and
				// a message may take long.
				c.answered.Store(true)
				wait.reached()
			}
			return stream, err
		}
		got, err := readStream(ctx, api, open, request(), end, take)
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

// readStream reads one stream to its end, as follow does. A nil error means that there is no more
// to follow. got reports whether a message arrived.
func readStream[API, Req, T any](ctx context.Context, api API, m func(API, context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[T], error),
	in *Req, end ending, take func(*T) (done bool, err error)) (got bool, err error) {
	// Leaving the loop must also free the stream in the daemon.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m(api, ctx, in)
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
// after a lost answer. The key is the id if the caller gave no key.
func repeatableSandbox(in *agboxv1.CreateSandboxRequest) *agboxv1.CreateSandboxRequest {
	in = proto.CloneOf(in)
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
