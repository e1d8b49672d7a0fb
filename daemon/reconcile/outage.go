package reconcile

import (
	"time"

	"github.com/agbox/agbox/runtime"
)

// outage is a period in which the engine did not answer: from its last answer before to
// its first answer after. until is zero while it lasts. The zero value means no outage.
type outage struct {
	from, until time.Time
}

// missed returns the outage after the engine failed to answer a query that was sent at
// begun. lastOK is the time of its last answer.
func (o outage) missed(begun, lastOK time.Time) outage {
	if begun.Before(o.until) {
		return o // a query sent in an outage has failed because of it
	}
	return o.begins(lastOK)
}

// lost returns the outage after an event stream broke that was opened at the given time.
// If a restarting engine has a socket that queues connections, as with systemd, calls
// only wait. Then the stream alone shows the restart.
func (o outage) lost(opened, lastOK time.Time) outage {
	if opened.Before(o.from) {
		return o // it broke because of the known outage
	}
	return o.begins(lastOK)
}

func (o outage) begins(lastOK time.Time) outage {
	if lastOK.IsZero() || o.lasts() {
		return o
	}
	return outage{from: lastOK}
}

// answered returns the outage after the engine has answered at the given time.
func (o outage) answered(at time.Time) outage {
	if o.lasts() {
		o.until = at
	}
	return o
}

func (o outage) lasts() bool { return !o.from.IsZero() && o.until.IsZero() }

// covers reports whether the container ended during the outage. The reason was then most
// likely the restart of the engine. The engine's clock is that of this host.
func (o outage) covers(c *runtime.Container) bool {
	ended := c != nil && (c.State == runtime.StateExited || c.State == runtime.StateDead)
	return ended && !o.from.IsZero() && c.FinishedAt.After(o.from) &&
		(o.until.IsZero() || c.FinishedAt.Before(o.until))
}

// endedWithEngine reports whether the container ended while the engine was away.
func (l *Loop) endedWithEngine(c *runtime.Container) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage.covers(c)
}

// missedEngine records that the engine did not answer a step that began at begun. The
// next full look updates its health.
func (l *Loop) missedEngine(begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage = l.outage.missed(begun, l.answeredAt)
	l.doubtEngineLocked()
}

// lostStream records that an event stream broke that was opened at the given time.
func (l *Loop) lostStream(opened time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage = l.outage.lost(opened, l.answeredAt)
	l.doubtEngineLocked()
}
