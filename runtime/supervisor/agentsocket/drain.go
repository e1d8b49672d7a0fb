package agentsocket

import (
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// opDrained is the request that only asks whether the incarnation is drained. It has no row.
const opDrained = "drained"

// orders is what each answer tells an incarnation to do.
type orders struct {
	// Drain: save the work, begin no further step and exit.
	Drain bool `json:"drain,omitempty"`
	// DeadlineMs is the time in milliseconds in which the step under way must end. When it is
	// over, abort calls.
	DeadlineMs *int64 `json:"deadline_ms,omitempty"`
	// Paused: the agent is paused, and calls are refused until it goes on.
	Paused bool `json:"paused,omitempty"`
	// Checkpoint: the incarnation was UNHEALTHY, and has saved no checkpoint since. Save one.
	Checkpoint bool `json:"checkpoint,omitempty"`
}

// Running reports whether the exec is a running incarnation.
func (s *Server) Running(execID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byExec[execID]
	return ok
}

// Drain begins to tell an incarnation that it is drained. plan gets the newest state that it
// has reported, and returns when it is to abort its calls. It returns false for one that has
// ended, or was told before. write appends a row about it to the journal, which may have to
// wait for the disk, and has the calls of the incarnation aborted in time.
func (s *Server) Drain(execID string, plan func(lifecycle string) (abort time.Time)) (begun bool, write func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[s.byExec[execID]]
	if in == nil || !in.abort.IsZero() {
		return false, nil
	}
	abort := plan(in.pulse.lifecycle)
	in.abort = abort
	close(in.draining)
	return true, func() {
		in.calls.drain(in, abort, time.Now())
		_, _ = in.report(journal.Row{Op: journal.Drain}, time.Now()) // without a row it is drained all the same
	}
}

// orders returns what an incarnation has to be told now.
func (s *Server) orders(in *incarnation, now time.Time) orders {
	s.mu.Lock()
	defer s.mu.Unlock()
	also := orders{Paused: in.pausedLocked(), Checkpoint: in.pulse.save}
	if in.abort.IsZero() {
		return also
	}
	left := max(0, in.abort.Sub(now).Milliseconds())
	also.Drain, also.DeadlineMs = true, &left
	return also
}
