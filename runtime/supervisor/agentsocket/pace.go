package agentsocket

import "time"

const (
	// requestEvery is the pace of the requests of an incarnation, and requestBurst the number
	// that it may make at once. A request costs the daemon more than a report costs the
	// supervisor, and a daemon serves many sandboxes.
	requestEvery = 10 * time.Millisecond
	requestBurst = 200
)

// pace holds requests back that follow each other too fast. Server.mu guards it.
type pace struct {
	// due is when the requests so far would end at the pace.
	due time.Time
}

// take counts a request and returns how long it is held back.
func (p *pace) take(now time.Time) time.Duration {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(requestEvery)
	return max(0, p.due.Sub(now)-requestBurst*requestEvery)
}
