package agentsocket

import (
	"encoding/json"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// unobserved reports whether the program is not ready yet, and may not report that it is,
// because it has not taken the observation of what changed while its agent was paused. mu is
// held.
func (in *incarnation) unobserved(state string) bool {
	begins := in.sum.Phase == journal.Pending && (state == journal.Ready || state == journal.Executing)
	return begins && in.observation > in.sum.Observation
}

// polls returns a channel that ends requests of an op when the incarnation is drained: of
// those that wait for what others do. It is nil for all others.
func (in *incarnation) polls(op string) <-chan struct{} {
	switch op {
	case "acquire", "pause", "recv", "wait":
		return in.draining
	}
	return nil
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
