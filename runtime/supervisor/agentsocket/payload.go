package agentsocket

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// maxTotal bounds what is believed of a number of a beat.
const maxTotal = 1e12

// believe checks what a beat says about its sender, and reports the state that it has, with the
// states before it: a program that only beats says in which state it is, not which it has left.
// A drain that the program has not noticed is no contradiction. The error is a *refusal.
func (in *incarnation) believe(req request, now time.Time) error {
	for _, claim := range []struct {
		name, is string
		must     []string
	}{
		{"agentId", req.AgentID, []string{in.agentID}}, {"jobId", req.JobID, []string{in.agentID}}, {"podName", req.PodName, []string{in.execID, in.hostname}},
	} {
		if claim.is != "" && !slices.Contains(claim.must, claim.is) {
			return &refusal{codeReport, fmt.Sprintf("The beat has the %s %.64q, and the token is of %s: leave the field out, or give AGBOX_AGENT_ID and, as podName, HOSTNAME or AGBOX_EXEC_ID.", claim.name, claim.is, claim.must[0])}
		}
	}
	in.mu.Lock()
	known, drained := in.sum.Lifecycle, in.sum.Drained
	in.mu.Unlock()
	if req.LifecycleState == "" || req.LifecycleState == known {
		return nil
	}
	way := journal.Between(known, req.LifecycleState)
	switch {
	case way == nil && drained && journal.Between(req.LifecycleState, known) != nil:
		return nil
	case way == nil:
		way = []string{req.LifecycleState} // is refused, with the states that may follow
	}
	for _, state := range way {
		if _, err := in.report(journal.Row{Op: journal.State, State: state}, now); err != nil {
			return err
		}
	}
	return nil
}

// totals are those of a beat, or nil if it has none.
func (r *request) totals() *journal.Totals {
	if r.Metrics == nil && r.CurrentStep == nil {
		return nil
	}
	t := new(journal.Totals)
	if r.CurrentStep != nil {
		t.Step, t.InStep = count(*r.CurrentStep), true
	}
	if m := r.Metrics; m != nil {
		t.Steps, t.LLMCalls, t.ToolCalls = count(m.StepsCompleted), count(m.LLMCalls), count(m.ToolCalls)
	}
	return t
}

// count is a number of a beat as a count. Some languages write it with a fraction.
func count(of float64) uint64 { return uint64(math.Round(min(max(0, of), maxTotal))) }
