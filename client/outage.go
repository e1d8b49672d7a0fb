package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

const (
	// outageAfter is how long a daemon that nobody starts is gone before it is told.
	outageAfter = 600 * time.Millisecond
	// startAgainAfter is the time from the start of a daemon to the next one.
	startAgainAfter = 5 * time.Second
)

// Outage is news about a daemon that went away under the calls of a client.
type Outage struct {
	// Over means that a daemon answers again. No other field is set then.
	Over bool
	// Starting means that the client starts a daemon now.
	Starting bool
	// Stopped means that the daemon was stopped on purpose. The client starts none then.
	Stopped bool
	// Failed, if not nil, is why the daemon could not be started. The client tries again.
	Failed error
	// Wait is how long the client still waits for a daemon.
	Wait time.Duration
}

// outages tells of the outages of one client. Its calls and streams notice them one by one.
type outages struct {
	// tell is nil if nobody is told.
	tell func(Outage)

	// mu guards the fields below.
	// Held across I/O: tell may write, and the news must come in order.
	mu sync.Mutex
	// told means that an outage has begun, failed that a failed start was told.
	told, failed bool
	// over is when the last one ended.
	over time.Time
}

// begin tells that calls have failed since a time, once, if that is at least a while ago.
func (o *outages) begin(since time.Time, while time.Duration, news Outage) {
	if o.tell == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	// A call may report its failure after another one has reached the next daemon.
	if o.told || time.Since(since) < while || time.Since(o.over) < while {
		return
	}
	o.told = true
	o.tell(news)
}

// startFailed tells, once in an outage, that the daemon cannot be started.
func (o *outages) startFailed(news Outage) {
	if o.tell == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told && !o.failed {
		o.failed = true
		o.tell(news)
	}
}

// end tells that a daemon answers again.
func (o *outages) end() {
	if o.tell == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told {
		o.told, o.failed, o.over = false, false, time.Now()
		o.tell(Outage{Over: true})
	}
}

// patience paces the retries after the daemon was lost, and bounds them.
type patience struct {
	bound time.Duration
	// since is the time of the first of consecutive failures, or later if a daemon has served in
	// between. It is zero if there is none.
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

// reset forgets the failures after progress.
func (p *patience) reset() {
	p.since, p.pause, p.stopping, p.failed, p.nextStart = time.Time{}, 0, false, nil, time.Time{}
	p.reached()
}

// served is called when a daemon is lost that has served a stream for a while, which makes up for as long
// an outage.
func (p *patience) served(a time.Duration) {
	if p.since.IsZero() {
		return
	}
	if p.since = p.since.Add(2 * a); p.since.After(time.Now()) {
		p.since, p.stopping, p.failed, p.nextStart = time.Time{}, false, nil, time.Time{}
	}
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
	switch {
	case e.away():
		p.stopping = p.stopping || e.stops()
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
	case e.away():
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
