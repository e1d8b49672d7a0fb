package incarnations

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
)

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
