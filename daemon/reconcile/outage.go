package reconcile

import (
	"time"

	"github.com/agbox/agbox/runtime"
)

// outage is a time in which the engine did not answer: from its last answer
// before to the first one after. until is zero while it lasts. The zero value is
// none at all.
type outage struct {
	from, until time.Time
}

// missed returns the outage after the engine did not answer what was asked at begun.
// lastOK is when it had answered last.
func (o outage) missed(begun, lastOK time.Time) outage {
	if begun.Before(o.until) {
		return o // what was asked in an outage failed in it
	}
	return o.begins(lastOK)
}

// lost returns the outage after the stream of events broke off that was opened at the
// given time. An engine that is restarted behind a socket that queues, as systemd's
// does, lets calls wait: the stream alone tells of it.
func (o outage) lost(opened, lastOK time.Time) outage {
	if opened.Before(o.from) {
		return o // it broke when the engine was missed
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

// covers tells whether the container ended in the outage: then it was most
// likely the engine's own restart. An engine's clock is the host's, which is ours.
func (o outage) covers(c *runtime.Container) bool {
	ended := c != nil && (c.State == runtime.StateExited || c.State == runtime.StateDead)
	return ended && !o.from.IsZero() && c.FinishedAt.After(o.from) &&
		(o.until.IsZero() || c.FinishedAt.Before(o.until))
}

// endedWithEngine tells whether the container ended while the engine was away.
func (l *Loop) endedWithEngine(c *runtime.Container) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage.covers(c)
}

// missedEngine notes that the engine did not answer a step that began at begun. Its
// health is for the next full look to say.
func (l *Loop) missedEngine(begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage = l.outage.missed(begun, l.answeredAt)
}

// lostStream notes that a stream of events broke off that was opened at the given time.
func (l *Loop) lostStream(opened time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage = l.outage.lost(opened, l.answeredAt)
}
