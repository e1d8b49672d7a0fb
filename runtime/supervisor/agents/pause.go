package agents

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agbox/agbox/internal/journal"
)

// codePaused refuses the calls of an incarnation whose agent is paused.
const codePaused = "PAUSED"

// Pause says that the agent of an incarnation is paused.
type Pause struct {
	// Mark is higher than that of each earlier pause. 0 means that it is not paused.
	Mark uint64
	// Message says why.
	Message string
	// Observation is what changed meanwhile, a JSON object, if the agent is woken and goes on
	// in Phase once the program has it.
	Observation []byte
	Phase       string
}

// pause is what an incarnation was told of a pause. Server.mu guards it.
type pause struct {
	Pause
	// taken is the newest mark whose observation the program has.
	taken uint64
}

// Pause tells an incarnation of a pause of its agent. It returns false if it does not run.
func (s *Server) Pause(execID string, p Pause) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[s.byExec[execID]]
	if in == nil {
		return false
	}
	if in.pause.Mark != p.Mark {
		in.pause.Pause = p
		in.pulse.changes++
		s.wakeLocked()
	}
	return true
}

// pausedLocked reports whether the incarnation may make no call because of a pause.
func (in *incarnation) pausedLocked() bool { return in.pause.Mark > in.pause.taken }

// paused returns the refusal of a call because of a pause, or nil. With the refusal, the
// program takes what changed, if that is known. mu is held.
func (in *incarnation) paused(now time.Time) *refusal {
	s := in.server
	s.mu.Lock()
	p, paused := in.pause.Pause, in.pausedLocked()
	s.mu.Unlock()
	switch {
	case !paused:
		return nil
	case len(p.Observation) == 0:
		return &refusal{codePaused, fmt.Sprintf("The agent is paused, so this call may not be made: %s \"agbox-agent pause idle\" waits until it goes on.", p.Message)}
	}
	if err := in.write(journal.Row{Op: journal.Observed, Observation: p.Mark, State: p.Phase}, now, nil); err != nil {
		return &refusal{codePaused, err.Error()}
	}
	in.take(p.Mark, p.Phase)
	next := "Go on if that still fits, and make the call again."
	if p.Phase == journal.Planning {
		next = "It was denied, or has to ask for its resources again: make another plan."
	}
	return &refusal{codePaused, fmt.Sprintf("The agent was paused, and goes on now. This changed meanwhile: %s %s", p.Observation, next)}
}

// mayWork is paused for those who do not hold mu.
func (in *incarnation) mayWork(now time.Time) *refusal {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.paused(now)
}

// take is takeLocked for those who do not hold Server.mu.
func (in *incarnation) take(mark uint64, phase string) {
	in.server.mu.Lock()
	defer in.server.mu.Unlock()
	in.takeLocked(mark, phase)
}

// takeLocked remembers that the program has an observation, and the phase in which the agent
// goes on then. Neither may be set.
func (in *incarnation) takeLocked(mark uint64, phase string) {
	switch phase {
	case journal.Planning, journal.Executing, journal.Verifying:
		mark = max(mark, in.pause.Mark)
	}
	in.pause.taken = max(in.pause.taken, mark)
}

// observed returns what the answer of a request says about a pause: the observation that the
// program has with it, and the phase in which the agent goes on. Neither may be there.
func observed(result json.RawMessage) (observation uint64, phase string) {
	var got struct {
		Phase       string          `json:"phase"`
		Observation json.RawMessage `json:"observation"`
	}
	if json.Unmarshal(result, &got) != nil {
		return 0, ""
	}
	var number uint64
	var nested struct {
		Observation uint64 `json:"observation"`
	}
	if json.Unmarshal(got.Observation, &number) != nil {
		_ = json.Unmarshal(got.Observation, &nested) // that of a request for leases
	}
	return cmp.Or(number, nested.Observation), got.Phase
}
