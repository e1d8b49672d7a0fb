package agents

import (
	"encoding/json"
	"time"

	"github.com/agbox/agbox/internal/journal"
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

// align takes over the phase in which the agent is after a request, so that the program can
// report the next one. What the daemon has decided is no report: it leaves out the row.
func (in *incarnation) align(result json.RawMessage) {
	var after struct {
		Phase string `json:"phase"`
	}
	if json.Unmarshal(result, &after) != nil || in.summary().Phase == after.Phase {
		return
	}
	switch after.Phase {
	case journal.Planning, journal.Executing, journal.Verifying:
		_, _ = in.report(journal.Row{Op: journal.Phase, State: after.Phase}, time.Now()) // the next report is refused without it
	}
}
