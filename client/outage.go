package client

import (
	"sync"
	"time"
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
