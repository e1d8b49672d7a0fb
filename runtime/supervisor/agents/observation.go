package agents

import "github.com/agbox/agbox/internal/journal"

// unobserved reports whether the program is not ready yet, and may not report that it is,
// because it has not taken the observation of what changed while its agent was paused. mu is
// held.
func (in *incarnation) unobserved(state string) bool {
	begins := in.sum.Phase == journal.Pending && (state == journal.Ready || state == journal.Executing)
	return begins && in.observation > in.sum.Observation
}
