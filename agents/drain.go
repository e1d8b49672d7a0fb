package agents

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// DrainRules are the lengths of the phases of a drain, which follow each other. The
// supervisor keeps to them by its own clock.
type DrainRules struct {
	// PreStop lasts from the request to SIGTERM. Step is for the step under way, Cleanup for
	// saving and exiting, Buffer until SIGKILL.
	PreStop, Step, Cleanup, Buffer time.Duration
}

// maxDrain is the longest drain.
const maxDrain = 65 * time.Second

// Total is the time from the request to SIGKILL.
func (d DrainRules) Total() time.Duration { return d.PreStop + d.Step + d.Cleanup + d.Buffer }

func drainOf(d *agboxv1.AgentDrain) DrainRules {
	return DrainRules{
		PreStop: length(d.GetPreStop(), defaultPreStop),
		Step:    length(d.GetStep(), defaultStep),
		Cleanup: length(d.GetCleanup(), defaultCleanup),
		Buffer:  length(d.GetBuffer(), defaultBuffer),
	}
}

// checkDrain reports a drain that breaks the invariant: its phases take at most maxDrain
// together, and the buffer is not empty.
func checkDrain(spec *agboxv1.AgentSpec, problem Report) {
	d := RulesOf(spec).Drain
	switch {
	case min(d.PreStop, d.Step, d.Cleanup, d.Buffer) < 0: // the rules of the message refuse it
	case d.Buffer == 0:
		problem([]any{"drain", "buffer"}, "The buffer is the time in which the program can still exit before SIGKILL: write more than 0s")
	case max(d.PreStop, d.Step, d.Cleanup, d.Buffer) > maxDrain || d.Total() > maxDrain:
		problem([]any{"drain"}, "A drain takes at most %s, and these phases take %s: pre_stop %s, step %s, cleanup %s, buffer %s. Write shorter ones",
			maxDrain, d.Total(), d.PreStop, d.Step, d.Cleanup, d.Buffer)
	}
}

// DrainedFor is the reason of the pause after a drain of the current incarnation, which has
// ended. What asked for the drain is still in the record, unless it is the sandbox.
func DrainedFor(r Record) agboxv1.PauseReason {
	switch {
	case r.PauseWanted != nil:
		return r.PauseWanted.GetReason()
	case r.State == Paused && !r.Pause.Woken:
		return agboxv1.PauseReason_PAUSE_REASON_IDLE
	}
	return agboxv1.PauseReason_PAUSE_REASON_DRAINED
}
