package incarnations

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// maxRefusal is the size of an observation that fits into the refusal of a call, in bytes. A
// larger one must be asked for.
const maxRefusal = 16 << 10

// TellPause tells the incarnation of the agent whether the agent is paused, and what changed
// if it was woken. A supervisor that is too old is not told.
func (r *Runner) TellPause(ctx context.Context, a ledger.Agent) error {
	link := r.desk.of(a.Incarnation.ExecID).link
	req := &guestv1.PauseRequest{ExecId: a.Incarnation.ExecID, Mark: a.PauseMark()}
	if req.GetMark() != 0 {
		req.Message = a.Pause.Message
	}
	if req.GetMark() != 0 && a.PendingObservation() != 0 {
		raw, err := json.Marshal(r.observe(ctx, a))
		if err != nil {
			return err
		}
		if req.Phase = journal.Executing; a.GoesOn() == agents.Planning {
			req.Phase = journal.Planning
		}
		if len(raw) <= maxRefusal {
			req.Observation = raw
		}
	}
	err := r.execs.Pause(ctx, a.Incarnation.SandboxID, req)
	if err != nil && !errdefs.IsNotImplemented(err) && fault.ReasonOf(err) != agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL {
		return err
	}
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	if k := r.desk.known[a.Incarnation.ExecID]; k.link == link {
		k.pause = &req.Mark
		r.desk.known[a.Incarnation.ExecID] = k
	}
	return nil
}

// ownPauses are the reasons for which a program can pause its agent, with what is shown
// without a message.
var ownPauses = map[string]struct {
	reason  agboxv1.PauseReason
	message string
}{
	"approval": {agboxv1.PauseReason_PAUSE_REASON_APPROVAL, "It asks for an approval."},
	"idle":     {agboxv1.PauseReason_PAUSE_REASON_IDLE, "It has nothing to do."},
}

type pauseFields struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// pause pauses the agent. It is answered with the observation when the agent was woken.
func (r *Runner) pause(ctx context.Context, a ledger.Agent, q request, fields pauseFields) (any, bool, error) {
	why, known := ownPauses[fields.Reason]
	if !known {
		return nil, false, invalid("The reason of a pause is approval or idle, not %.32q.", fields.Reason)
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
		return phaseOf(a), false, nil
	case !a.Pause.Woken:
		return nil, true, nil
	}
	return r.observe(ctx, a), false, nil
}

type resumedFields struct {
	How         string `json:"how"`
	Observation uint64 `json:"observation"`
}

// resumed lets the agent go on.
func (r *Runner) resumed(ctx context.Context, a ledger.Agent, q request, fields resumedFields) (any, bool, error) {
	if fields.How != "ok" && fields.How != "replan" {
		return nil, false, invalid("An agent goes on with how: ok, or replan if what it had assumed does not hold any more; not with %.32q.", fields.How)
	}
	a, err := r.ledger.ResumeOnRequest(ctx, a.ID, q.of(a), fields.Observation, fields.How == "replan")
	if err != nil {
		return nil, false, err
	}
	return phaseOf(a), false, nil
}

// Drain lets the incarnation save its work and exit, and has the supervisor end it when the
// time for that is over. A drain that has begun goes on as it is. drains is false if the
// incarnation does not run any more.
//
// A supervisor that is too old to drain sends SIGTERM at once, and SIGKILL when a drain would
// be over.
func (r *Runner) Drain(ctx context.Context, a ledger.Agent) (drains bool, err error) {
	inc, rules := a.Incarnation, agents.RulesOf(a.Spec)
	d := rules.Drain
	err = r.execs.Drain(ctx, inc.SandboxID, &guestv1.DrainRequest{
		ExecId:    inc.ExecID,
		PreStopMs: uint32(d.PreStop.Milliseconds()), StepMs: uint32(d.Step.Milliseconds()),
		CleanupMs: uint32(d.Cleanup.Milliseconds()), BufferMs: uint32(d.Buffer.Milliseconds()),
		Reports: !rules.ReadyStart,
	})
	if errdefs.IsNotImplemented(err) {
		err = r.execs.Cancel(ctx, inc.SandboxID, inc.ExecID, d.Total())
	}
	if fault.ReasonOf(err) == agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL {
		return false, nil
	}
	return err == nil, err
}

// stopping reports whether the sandbox of an agent is to stop, or to be removed.
func (r *Runner) stopping(a ledger.Agent) bool {
	sb, living := r.ledger.Sandbox(a.SandboxID)
	return living && sb.Want != machine.WantRunning
}

// drained reports whether an incarnation ended in a drain, or with its sandbox. A supervisor
// that is too old to drain calls it cancelled.
func drained(a ledger.Agent, exec *agboxv1.ExecStatus, stopping bool) bool {
	switch exec.GetErrorCode() {
	case agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC.String(), agboxv1.ErrorReason_EXEC_DRAINED.String():
		return true
	case agboxv1.ErrorReason_CANCELLED_BY_REQUEST.String():
		return a.PauseWanted != nil || stopping
	}
	return false
}
