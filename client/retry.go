package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
)

const (
	// firstPause is the pause before the first new try; each further one is
	// twice as long, up to longestPause. A daemon is back within tens of
	// milliseconds, and a dial of a Unix socket costs next to nothing.
	firstPause   = 5 * time.Millisecond
	longestPause = 100 * time.Millisecond
	// restartAfter is how long a daemon that crashed is given to be started again by
	// whoever looks after it, such as systemd.
	restartAfter = 300 * time.Millisecond
	// recoveryBound is how long a sandbox that the daemon cannot reach is asked
	// again: after a start of the daemon it takes a moment until all are seen.
	recoveryBound = 5 * time.Second
)

// repeat says what may be done about a call of unknown fate.
type repeat bool

const (
	// idempotent calls may reach the daemon twice.
	idempotent repeat = true
	// atMostOnce calls are repeated only when they were certainly not carried out.
	atMostOnce repeat = false
)

// method is a unary method of the generated client, as a method expression.
type method[Req, Resp any] func(agboxv1.SandboxServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error)

// unary makes one call and repeats it, within the client's bound, when the
// daemon went away and the repetition does no harm.
func unary[Req, Resp any](ctx context.Context, c *Client, m method[Req, Resp], in *Req, r repeat) (*Resp, error) {
	wait := c.newPatience(ctx)
	for {
		api, err := c.open(ctx)
		if err != nil {
			return nil, err
		}
		// gRPC fills in the peer only when the call got as far as a connection.
		var to peer.Peer
		out, err := m(api, ctx, in, grpc.Peer(&to))
		if err == nil {
			c.answered.Store(true)
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

// patience paces the new tries after a loss of the daemon and ends them.
type patience struct {
	bound time.Duration
	// since is the time of the first failure in a row; zero while all is well.
	since time.Time
	pause time.Duration
	// socket is named in the error that ends the tries.
	socket string
	// restart starts a daemon after a crash; nil: it is only waited for.
	restart func(context.Context) error
	// stopping: the daemon has said that it stops, so it did not crash.
	stopping bool
}

// restarting marks the context of calls that start the daemon again when it crashes
// under them, as the first call does when none runs.
type restarting struct{}

// withRestart returns a context for calls that start a crashed daemon again. Callers of
// CreateSandbox and WaitReady wait for something that only a daemon can bring about;
// what runs in a sandbox needs none.
func withRestart(ctx context.Context) context.Context {
	return context.WithValue(ctx, restarting{}, true)
}

func (c *Client) newPatience(ctx context.Context) *patience {
	p := &patience{bound: c.reconnect, socket: c.socket}
	if ctx.Value(restarting{}) != nil {
		p.restart = c.autostart
	}
	return p
}

// reset forgets the failures: there was progress.
func (p *patience) reset() { p.since, p.pause, p.stopping = time.Time{}, 0, false }

// again pauses and returns nil when the call that failed with e is to be tried
// again; otherwise it returns the error to hand to the caller.
func (p *patience) again(ctx context.Context, e *Error) error {
	bound := p.boundFor(e)
	if bound == 0 {
		return e
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since, p.pause = now, firstPause
	}
	p.stopping = p.stopping || e.Reason == agboxv1.ErrorReason_DAEMON_STOPPING.String()
	if e.lost && !p.stopping && p.restart != nil && now.Sub(p.since) >= restartAfter {
		var failed *Error
		if err := p.restart(ctx); err != nil && !(errors.As(err, &failed) && failed.lost) {
			return err
		}
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

// boundFor is how long to try again after e; 0 means not at all.
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
	return &Error{
		Code:   codes.Unavailable,
		Reason: e.Reason,
		Message: fmt.Sprintf("agboxd at %s went away and did not come back within %v. Start it with `agbox daemon start`; commands in the sandboxes keep running.",
			p.socket, p.bound),
		cause: ErrDaemonUnreachable,
	}
}
