package agents

import (
	"fmt"
	"time"

	"github.com/agbox/agbox/internal/journal"
)

// believe checks what a beat says about its sender, and reports the state that it has. The
// error is a *refusal.
func (in *incarnation) believe(req request, now time.Time) error {
	for _, claim := range []struct{ name, is, must string }{
		{"agentId", req.AgentID, in.agentID}, {"jobId", req.JobID, in.agentID}, {"podName", req.PodName, in.execID},
	} {
		if claim.is != "" && claim.is != claim.must {
			return &refusal{codeReport, fmt.Sprintf("The beat has the %s %.64q, and the token is of %s: leave the field out, or give AGBOX_AGENT_ID and, as podName, AGBOX_EXEC_ID.", claim.name, claim.is, claim.must)}
		}
	}
	in.mu.Lock()
	known := in.sum.Lifecycle
	in.mu.Unlock()
	if req.LifecycleState == "" || req.LifecycleState == known {
		return nil
	}
	_, err := in.report(journal.Row{Op: journal.State, State: req.LifecycleState}, now)
	return err
}
