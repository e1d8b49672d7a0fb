// Package probes checks the program of an incarnation at regular times: whether it has
// started, whether it is alive, and whether it is ready. It needs no daemon.
package probes

import (
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// Target is what a probe asks. One field is set; without any, there is no probe.
type Target struct {
	// Port and Path are those of an HTTP server on 127.0.0.1. Status 200 to 399 is success.
	Port uint16
	Path string
	// Command is run as the program's user. Exit code 0 is success.
	Command []string
	// Report asks what the program has reported itself: with MaxSilence, whether it works and
	// its last beat is not older; else whether it is ready.
	Report     bool
	MaxSilence time.Duration
}

// Set reports whether there is something to ask.
func (t Target) Set() bool { return t.Port != 0 || len(t.Command) > 0 || t.Report }

// Probe is one of the probes.
type Probe struct {
	Target
	// Period is the time between two checks, Timeout the longest that one may take.
	Period, Timeout time.Duration
	// Failures is how many checks in a row must fail before that has a consequence. One
	// success is enough for the opposite.
	Failures int
}

// Rules are the probes of an incarnation.
type Rules struct {
	Liveness, Readiness Probe
	// Startup bounds the start: liveness begins when it has succeeded, and the incarnation
	// ends if it has not after Failures periods. Its target is that of liveness if it has
	// none.
	Startup Probe
	// AwaitReport and AwaitReady count to the start until the program has reported that it
	// is ready, or until the readiness probe has succeeded.
	AwaitReport, AwaitReady bool
}

// Empty reports whether there is nothing to check.
func (r Rules) Empty() bool {
	return !r.Liveness.Set() && !r.Readiness.Set() && !r.Startup.Set() && !r.AwaitReport
}

// bounded reports whether the start has a bound.
func (r Rules) bounded() bool {
	return r.Liveness.Set() || r.Startup.Set() || r.AwaitReport || r.AwaitReady && r.Readiness.Set()
}

// bound is how long the start may take.
func (p Probe) bound() time.Duration { return time.Duration(p.Failures) * p.Period }

// Result is that of one check.
type Result uint8

// The results. Unknown means that the check could not be made, for a reason outside of the
// program. It changes nothing.
const (
	Unknown Result = iota
	Passed
	Failed
)

// Gauge is what the results of a probe come to. The zero Gauge is not well.
type Gauge struct {
	// Well is true from a success until too many failures in a row.
	Well     bool
	failures int
}

// Next returns the gauge after one more result. down means that this result has made the
// failures in a row too many.
func (g Gauge) Next(r Result, limit int) (next Gauge, down bool) {
	switch r {
	case Passed:
		return Gauge{Well: true}, false
	case Failed:
		g.failures++
		if g.failures >= limit {
			return Gauge{failures: limit}, g.failures == limit
		}
	case Unknown:
	}
	return g, false
}

// maxLag is how late a timer of the program may be. If it is later, the event loop of the
// program is blocked.
const maxLag = 5 * time.Second

// Reported is what a program has reported last. Alive and Ready are also what "agbox-agent
// serve-health" answers in the name of a program.
type Reported struct {
	// State is the state of the incarnation, as in a journal.
	State string
	// Silent is the time since its last beat or, without one, since its start.
	Silent time.Duration
	// Lag is how late the timers of its event loop were. 0 if it did not say.
	Lag time.Duration
	// PoolEmpty means that it has no free connection to its database.
	PoolEmpty bool
}

// Alive reports whether the program works. Its silence is no failure: that has a ladder of
// its own.
func (r Reported) Alive() bool {
	return r.State != journal.Terminated && r.Lag <= maxLag && !r.PoolEmpty
}

// Ready reports whether the program works and has everything that it needs.
func (r Reported) Ready() bool {
	return r.Alive() && (r.State == journal.Ready || r.State == journal.Executing)
}

// Started reports whether the program has been ready.
func (r Reported) Started() bool {
	return r.State != journal.Booting && r.State != journal.Hydrating
}

// Check is the check of a target that asks for reports.
func (r Reported) Check(t Target) Result {
	well := r.Ready()
	if t.MaxSilence > 0 {
		well = r.Alive() && r.Silent <= t.MaxSilence
	}
	if well {
		return Passed
	}
	return Failed
}
