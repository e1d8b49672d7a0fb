package agentsocket

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

// codePaused refuses the calls of an incarnation whose agent is paused.
const codePaused = "PAUSED"

// Pause tells an incarnation of a pause of its agent. It returns false if it does not run.
func (s *Server) Pause(execID string, p Pause) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[s.byExec[execID]]
	if in == nil {
		return false
	}
	in.pause.lost = false // from now on the mark says it
	if in.pause.Mark != p.Mark {
		in.pause.Pause = p
		in.pulse.changes++
		s.wakeLocked()
	}
	return true
}

// pausedLocked reports whether the agent is paused, as far as is known here.
func (in *incarnation) pausedLocked() bool {
	return in.pause.Mark > in.pause.taken || in.pause.lost || in.askedLocked("pause")
}

// state is the state of the agent as far as it is known here. unobserved means that the
// program began in a pause and has not taken the observation of what changed. mu is held.
func (in *incarnation) state() (state string, unobserved bool) {
	in.server.mu.Lock()
	defer in.server.mu.Unlock()
	switch {
	case in.pausedLocked():
		return statePaused, false
	case in.sum.Phase == journal.Pending && in.observation > in.sum.Observation:
		return statePaused, true
	case in.askedLocked("acquire"):
		return stateAcquiring, false
	case in.sum.Phase == journal.Planning && !in.phased: // it was told so and need not know phases
		return journal.Executing, false
	}
	return in.sum.Phase, false
}

// States of an agent that its program does not report.
const (
	statePaused    = "PAUSED"
	stateAcquiring = "ACQUIRING"
)

// mayAct refuses what the state of the agent does not allow, by the table gate.Ops. tool is the
// name of a tool.
func (in *incarnation) mayAct(act, tool string, now time.Time) *refusal {
	in.mu.Lock()
	defer in.mu.Unlock()
	state, unobserved := in.state()
	switch {
	case gate.May(act, state, tool, in.bounds.Reading):
		return nil
	case unobserved:
		return refused(codeObservation)
	case state == statePaused:
		return in.paused(now)
	case state == stateAcquiring:
		return &refusal{stateAcquiring, "The agent has asked for resources that it has not got yet: wait for the answer to acquire."}
	}
	return &refusal{state, fmt.Sprintf("The agent is %s: it asks its model and uses tools that only read (planning_tools of its spec), and %s is none. Report the phase EXECUTING first, or ask for its resources with acquire.",
		state, cmp.Or(tool, act))}
}

// paused returns the refusal of a call because of a pause, or nil. With the refusal, the
// program takes what changed, if that is known. mu is held.
func (in *incarnation) paused(now time.Time) *refusal {
	s := in.server
	s.mu.Lock()
	p, paused, told, given := in.pause.Pause, in.pausedLocked(), in.pause.Mark > in.pause.taken, in.pause.given
	s.mu.Unlock()
	switch {
	case !paused:
		return nil
	case told && given >= p.Mark:
		return &refusal{codeObservation, fmt.Sprintf("The agent was woken and has got observation %d: say first how it goes on, with resumed or acquire and that number.", given)}
	case len(p.Observation) == 0 || !told:
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

// take is takeLocked for those who do not hold Server.mu.
func (in *incarnation) take(mark uint64, phase string) {
	in.server.mu.Lock()
	defer in.server.mu.Unlock()
	in.takeLocked(mark, phase)
}

// takeLocked remembers that the program has an observation, and the phase in which the agent
// is, which has gone on if it is one of work. Neither may be set.
func (in *incarnation) takeLocked(mark uint64, phase string) {
	switch phase {
	case journal.Planning, journal.Executing, journal.Verifying:
		in.pause.taken, in.pause.lost = max(in.pause.taken, in.pause.Mark, mark), false
	default:
		in.pause.given = max(in.pause.given, mark)
	}
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

// knowsPhases remembers that the program has to do with phases, and returns the newest one.
func (in *incarnation) knowsPhases() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.phased = true
	return in.sum.Phase
}

// align takes over the phase in which the agent is after a request, so that the program can
// report the next one. What the daemon has decided is no report: it leaves out the row.
func (in *incarnation) align(result json.RawMessage) {
	var after struct {
		Phase string `json:"phase"`
	}
	if json.Unmarshal(result, &after) != nil {
		return
	}
	switch after.Phase {
	case journal.Planning, journal.Executing, journal.Verifying:
		if in.knowsPhases() == after.Phase {
			return
		}
		_, _ = in.report(journal.Row{Op: journal.Phase, State: after.Phase}, time.Now()) // the next report is refused without it
	}
}
