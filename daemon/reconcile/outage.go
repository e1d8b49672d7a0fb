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

// heard returns the outage after the engine was asked at the given time. lastOK is
// when it had answered last.
func (o outage) heard(at, lastOK time.Time, answered bool) outage {
	switch {
	case !answered && (o.from.IsZero() || !o.until.IsZero()) && !lastOK.IsZero():
		return outage{from: lastOK}
	case answered && !o.from.IsZero() && o.until.IsZero():
		o.until = at
	}
	return o
}

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
