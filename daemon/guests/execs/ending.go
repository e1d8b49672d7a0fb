package execs

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// ending converts the supervisor's record of an exec that has ended into event details.
// The cause of the end comes from the supervisor, the limits from the request.
func (r *Runner) ending(ctx context.Context, sandboxID string, rec *guestv1.ExecRecord) *agboxv1.ExecEventDetails {
	d := details(rec)
	if sb, living := r.ledger.Sandbox(sandboxID); d.GetErrorMessage() == stoppedSentence && living && sb.Want == machine.WantRunning {
		d.ErrorMessage = restartedSentence
	}
	if timedOut(d) {
		req, err := r.ledger.ExecRequest(ctx, sandboxID, rec.GetExecId())
		if err != nil {
			r.log.Warn("the request of an exec cannot be read", "sandbox_id", sandboxID, "exec_id", rec.GetExecId(), "error", err)
		}
		d.ErrorMessage = timeoutSentence(d.GetErrorCode(), req)
	}
	return d
}

// timedOut reports whether a limit of its request ended an exec.
func timedOut(d *agboxv1.ExecEventDetails) bool {
	return d.GetErrorCode() == agboxv1.ErrorReason_EXEC_TIMEOUT.String() || d.GetErrorCode() == agboxv1.ErrorReason_EXEC_IDLE_TIMEOUT.String()
}

// details converts a record without the parts that only the request knows.
func details(rec *guestv1.ExecRecord) *agboxv1.ExecEventDetails {
	d := &agboxv1.ExecEventDetails{
		ExecId:             rec.GetExecId(),
		ExitCode:           rec.GetExitCode(),
		Signal:             rec.GetSignal(),
		StartedAt:          rec.GetStartedAt(),
		FinishedAt:         rec.GetFinishedAt(),
		StdoutBytes:        rec.GetStdoutBytes(),
		StderrBytes:        rec.GetStderrBytes(),
		StdoutDroppedBytes: rec.GetStdoutDroppedBytes(),
		StderrDroppedBytes: rec.GetStderrDroppedBytes(),
		PeakMemoryBytes:    rec.GetPeakMemoryBytes(),
		OomKilled:          rec.GetOomKilled(),
	}
	ran := rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_EXITED
	if ran {
		d.UserTime, d.SystemTime = microseconds(rec.GetUserUs()), microseconds(rec.GetSystemUs())
	}
	cause, sentence := endReason(rec)
	switch {
	case cause != agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED:
		d.ExecState = agboxv1.ExecState_EXEC_STATE_CANCELLED
		d.ErrorCode, d.ErrorMessage = cause.String(), sentence
	case ran:
		d.ExecState = agboxv1.ExecState_EXEC_STATE_FINISHED
		d.ErrorMessage = oomSentence(rec)
	default:
		d.ExecState = agboxv1.ExecState_EXEC_STATE_FAILED
		d.ErrorCode = failureReason(rec.GetFailure()).String()
		d.ErrorMessage = rec.GetFailureMessage()
	}
	return d
}

// endReason says why the supervisor ended an exec or refused to start it. It returns
// UNSPECIFIED if the supervisor did neither. Older supervisors report no cause. Newer
// ones may report a cause that is unknown here.
func endReason(rec *guestv1.ExecRecord) (agboxv1.ErrorReason, string) {
	switch rec.GetEndCause() {
	case guestv1.EndCause_END_CAUSE_TIMEOUT:
		return agboxv1.ErrorReason_EXEC_TIMEOUT, ""
	case guestv1.EndCause_END_CAUSE_IDLE_TIMEOUT:
		return agboxv1.ErrorReason_EXEC_IDLE_TIMEOUT, ""
	case guestv1.EndCause_END_CAUSE_REQUEST:
		return agboxv1.ErrorReason_CANCELLED_BY_REQUEST, "The command was ended by request."
	case guestv1.EndCause_END_CAUSE_REAP:
		return agboxv1.ErrorReason_AGENT_REAPED, "The incarnation of the agent was ended, because it could not go on."
	case guestv1.EndCause_END_CAUSE_STOP:
		if rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_FAILED {
			return agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC, "The sandbox was stopped or removed before the command was started."
		}
		return agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC, stoppedSentence
	case guestv1.EndCause_END_CAUSE_LIVENESS:
		return agboxv1.ErrorReason_AGENT_NOT_ALIVE, "Its liveness probe failed."
	case guestv1.EndCause_END_CAUSE_STARTUP:
		return agboxv1.ErrorReason_AGENT_NOT_STARTED, "It did not become ready in time."
	case guestv1.EndCause_END_CAUSE_DRAIN:
		return agboxv1.ErrorReason_EXEC_DRAINED, "The command is an agent's, which was asked to save its work and to exit."
	case guestv1.EndCause_END_CAUSE_NONE:
		if !rec.GetCancelled() {
			return agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED, ""
		}
		return agboxv1.ErrorReason_CANCELLED_BY_REQUEST, "The command was ended by request."
	}
	return agboxv1.ErrorReason_CANCELLED_BY_REQUEST, fmt.Sprintf(
		"The supervisor of the sandbox ended the command, for a reason (%d) that this agboxd does not know.", rec.GetEndCause())
}

const (
	stoppedSentence = "The sandbox was stopped or removed while the command ran."
	// restartedSentence is for a container that ended without a request to end its sandbox.
	restartedSentence = "The container of the sandbox was stopped or restarted while the command ran, for example by docker restart."
)

// timeoutSentence names the limit, if the request is known and had one.
func timeoutSentence(code string, req *agboxv1.CreateExecRequest) string {
	idle := code == agboxv1.ErrorReason_EXEC_IDLE_TIMEOUT.String()
	limit := req.GetTimeout()
	if idle {
		limit = req.GetIdleTimeout()
	}
	switch {
	case limit == nil && idle:
		return "The command was ended because it had written nothing for its idle timeout."
	case limit == nil:
		return "The command was ended because it had run for its timeout."
	case idle:
		return fmt.Sprintf("The command was ended because it had written nothing for its idle timeout of %s.", limit.AsDuration())
	}
	return fmt.Sprintf("The command was ended because it had run for its timeout of %s.", limit.AsDuration())
}

// oomSentence says that a signal came because memory ran out, if that is known.
func oomSentence(rec *guestv1.ExecRecord) string {
	if rec.GetFailureMessage() != "" || !rec.GetOomKilled() {
		return rec.GetFailureMessage()
	}
	return "The kernel killed a process of the command because memory ran out: give the sandbox more memory, or let the command use less."
}

// microseconds converts an untrusted number of a supervisor into a duration.
func microseconds(us uint64) *durationpb.Duration {
	const most = uint64(1<<63-1) / uint64(time.Microsecond)
	return durationpb.New(time.Duration(min(us, most)) * time.Microsecond)
}
