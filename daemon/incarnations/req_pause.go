package incarnations

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// ownPauses are the reasons for which a program can pause its agent, with what is shown
// without a message.
var ownPauses = map[string]struct {
	reason  agboxv1.PauseReason
	message string
}{
	"approval": {agboxv1.PauseReason_PAUSE_REASON_APPROVAL, "It asks for an approval."},
	"idle":     {agboxv1.PauseReason_PAUSE_REASON_IDLE, "It has nothing to do."},
}

// pause pauses the agent. It is answered with the observation when the agent was woken.
func (r *Runner) pause(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	var fields struct {
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	if err := q.decode(&fields); err != nil {
		return nil, false, err
	}
	why, known := ownPauses[fields.Reason]
	if !known {
		return nil, false, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"The reason of a pause is approval or idle, not %.32q.", fields.Reason)
	}
	if fields.Message != "" {
		why.message = cut(strings.ToValidUTF8(fields.Message, ""))
	}
	if a.Incarnation.Request < q.number && a.State != agents.Paused {
		if _, err := r.ledger.PauseOnRequest(ctx, a.ID, q.of(a), why.reason, why.message); err != nil {
			return nil, false, err
		}
		a, _ = r.ledger.Agent(a.ID) // a message that waits may have woken it
	}
	switch {
	case a.State != agents.Paused: // it has gone on since
		return map[string]any{"phase": a.Word()}, false, nil
	case !a.Pause.Woken:
		return nil, true, nil
	}
	return r.observe(ctx, a), false, nil
}

// of identifies a request of the agent's incarnation.
func (q request) of(a ledger.Agent) ledger.Asked {
	return ledger.Asked{Incarnation: a.Incarnation.N, Number: q.number}
}

// resumed lets the agent go on.
func (r *Runner) resumed(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	var fields struct {
		How         string `json:"how"`
		Observation uint64 `json:"observation"`
	}
	if err := q.decode(&fields); err != nil {
		return nil, false, err
	}
	if fields.How != "ok" && fields.How != "replan" {
		return nil, false, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"An agent goes on with how: ok, or replan if what it had assumed does not hold any more; not with %.32q.", fields.How)
	}
	a, err := r.ledger.ResumeOnRequest(ctx, a.ID, q.of(a), fields.Observation, fields.How == "replan")
	if err != nil {
		return nil, false, err
	}
	return map[string]any{"phase": a.Word()}, false, nil
}
