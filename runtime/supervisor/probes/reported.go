package probes

import (
	"time"

	"github.com/agbox/agbox/agents/journal"
)

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
