package client

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"
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

// WithOutages sets a function that is told when the daemon is gone for some tenths of a
// second, when it cannot be started, and when it is back. tell is called by one goroutine
// at a time, in order. Calls and streams wait for it.
func WithOutages(tell func(Outage)) Option {
	return func(c *Client) error { c.outages.tell = tell; return nil }
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
