package client

import (
	"context"
	"fmt"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
)

const (
	// firstPause is the pause before the first retry. Each further pause is twice as
	// long, up to longestPause. A daemon is back within tens of milliseconds, and dialing
	// a Unix socket is cheap.
	firstPause   = 5 * time.Millisecond
	longestPause = 100 * time.Millisecond
	// restartAfter is how long the client waits for a service manager, such as systemd,
	// to start a crashed daemon again.
	restartAfter = 300 * time.Millisecond
	// recoveryBound is how long calls are retried for a sandbox that the daemon cannot
	// reach: after its start, the daemon needs a moment to reach all sandboxes.
	recoveryBound = 5 * time.Second
)

// repeat says whether a call whose result is unknown may be repeated.
type repeat bool

const (
	// idempotent calls may reach the daemon twice.
	idempotent repeat = true
	// atMostOnce calls are repeated only if they were certainly not executed.
	atMostOnce repeat = false
)

// method is a unary method of the generated client, as a method expression.
type method[Req, Resp any] func(agboxv1.SandboxServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error)

// unary makes a call. If the daemon goes away, it repeats the call within the client's
// bound, provided that repeating is harmless.
func unary[Req, Resp any](ctx context.Context, c *Client, m method[Req, Resp], in *Req, r repeat) (*Resp, error) {
	wait := c.newPatience()
	for {
		api, err := c.open(ctx)
		if err != nil {
			return nil, err
		}
		// gRPC sets the peer only if the call reached a connection.
		var to peer.Peer
		out, err := m(api, ctx, in, grpc.Peer(&to))
		if err == nil {
			c.answered.Store(true)
			wait.reached()
			return out, nil
		}
		e := c.decode(ctx, err)
		if to.Addr != nil && r == atMostOnce && e.Reason != agboxv1.ErrorReason_DAEMON_STOPPING.String() {
			return nil, e
		}
		if err := wait.again(ctx, e); err != nil {
			return nil, err
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
