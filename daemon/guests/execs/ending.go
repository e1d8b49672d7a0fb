package execs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
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
		StartedAt:          onHost(rec.GetStartedAt()),
		FinishedAt:         onHost(rec.GetFinishedAt()),
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

// EndAll ends execs of a sandbox whose primary did not run after they had begun, as far as they are
// recorded as running: with the status that the supervisor left on disk, or else as lost. missing means that the
// engine does not have the primary, so nobody saw it end, and it may be back with its execs.
func (r *Runner) EndAll(ctx context.Context, sandboxID string, execs map[string]machine.Exec, missing bool) error {
	sb, ok := r.ledger.Sandbox(sandboxID)
	if !ok || len(sb.Execs) == 0 {
		return nil
	}
	dir, err := logs.OpenDir(r.paths.SandboxLogs(sandboxID))
	if err != nil {
		r.log.Warn("the logs of a sandbox cannot be opened; its execs are lost", "sandbox_id", sandboxID, "error", err)
	} else {
		defer dir.Close()
	}
	var failed error
	for id, exec := range sb.Execs {
		if _, meant := execs[id]; !meant {
			continue
		}
		d := r.leftBehind(ctx, dir, sandboxID, exec, sb.Want)
		d.MayReturn = missing && d.GetErrorCode() == agboxv1.ErrorReason_EXEC_LOST.String()
		failed = errors.Join(failed, r.ledger.EndExec(ctx, sandboxID, d))
	}
	if lk, err := r.links.Get(sandboxID); err == nil {
		lk.LostSought.Store(false) // the link may outlast the absence of the container
	}
	return failed
}

// leftBehind returns how an exec ended whose container does not run.
func (r *Runner) leftBehind(ctx context.Context, dir *logs.Dir, sandboxID string, exec machine.Exec, want machine.Want) *agboxv1.ExecEventDetails {
	if dir != nil {
		rec, err := ReadStatus(dir, exec.ID)
		switch {
		case err != nil:
			r.log.Info("an exec left no readable status", "exec_id", exec.ID, "error", err)
		case rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_EXITED, rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_FAILED:
			if err := believable(exec, rec); err != nil {
				r.log.Warn("the status that an exec left behind is not believed", "sandbox_id", sandboxID, "exec_id", exec.ID, "error", err)
				break
			}
			bound(exec, rec, r.now())
			return r.ending(ctx, sandboxID, rec)
		}
	}
	if want != machine.WantRunning {
		// The engine killed the container because the user requested its end.
		return ledger.Ended(&agboxv1.ExecEventDetails{
			ExecId:       exec.ID,
			ExecState:    agboxv1.ExecState_EXEC_STATE_CANCELLED,
			ExitCode:     signalBase + int32(syscall.SIGKILL),
			Signal:       int32(syscall.SIGKILL),
			ErrorCode:    agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC.String(),
			ErrorMessage: stoppedSentence,
		}, r.now())
	}
	return ledger.Ended(lostExec(exec.ID, "The container or the host went away while the command ran"), r.now())
}

// believable refuses the status of an exec that another life of the supervisor than the
// one that was asked cannot have written: at most one life starts an exec.
func believable(exec machine.Exec, rec *guestv1.ExecRecord) error {
	if exec.BootID != "" && rec.GetBootId() != exec.BootID {
		return fmt.Errorf("it is of the supervisor's life %.80q, and the exec was given to %q", rec.GetBootId(), exec.BootID)
	}
	return nil
}

// bound moves the claimed times between the start of the exec, as far as it is known
// here, and now. The container's own command is recorded after its start.
func bound(exec machine.Exec, rec *guestv1.ExecRecord, now time.Time) {
	from := exec.StartedAt
	if exec.Main {
		from = time.Time{}
	}
	within := func(claimed *guestv1.Timestamp, from time.Time) *guestv1.Timestamp {
		switch {
		case claimed == nil:
			return nil
		case claimed.AsTime().Before(from):
			return guestv1.New(from)
		case claimed.AsTime().After(now):
			return guestv1.New(now)
		}
		return claimed
	}
	rec.StartedAt = within(rec.GetStartedAt(), from)
	if rec.GetStartedAt() != nil {
		from = rec.GetStartedAt().AsTime()
	}
	rec.FinishedAt = within(rec.GetFinishedAt(), from)
}

// onHost is a time of the link in the type of the API and the store.
func onHost(t *guestv1.Timestamp) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: t.GetSeconds(), Nanos: t.GetNanos()}
}

// signalBase is added to a signal's number to make an exit code, as shells do.
const signalBase = 128

// ReadStatus reads the status file of an exec. The file was written inside the
// container: it is bounded, decoded and checked like any other hostile input.
func ReadStatus(dir *logs.Dir, execID string) (*guestv1.ExecRecord, error) {
	raw, err := dir.ReadStatus(execID)
	if err != nil {
		return nil, err
	}
	rec := new(guestv1.ExecRecord)
	if err := rec.UnmarshalVT(raw); err != nil {
		return nil, err
	}
	if rec.GetExecId() != execID {
		return nil, errors.New("the status file belongs to another exec")
	}
	if err := guest.CheckRecord(rec); err != nil {
		return nil, err
	}
	return rec, nil
}

func lostExec(execID, sentence string) *agboxv1.ExecEventDetails {
	return failedExec(execID, agboxv1.ErrorReason_EXEC_LOST, sentence+"; its exit status is not known.")
}

// failedExec ends an exec that was accepted, and of which no process is known.
func failedExec(execID string, reason agboxv1.ErrorReason, sentence string) *agboxv1.ExecEventDetails {
	return &agboxv1.ExecEventDetails{
		ExecId:       execID,
		ExecState:    agboxv1.ExecState_EXEC_STATE_FAILED,
		ExitCode:     lostExitCode,
		ErrorCode:    reason.String(),
		ErrorMessage: sentence,
	}
}

// lostExitCode is the exit code if none is known. It is not 0, and engines report it for
// a container that they lost.
const lostExitCode = 255

func failureReason(f guestv1.StartFailure) agboxv1.ErrorReason {
	switch f {
	case guestv1.StartFailure_START_FAILURE_COMMAND_NOT_FOUND:
		return agboxv1.ErrorReason_COMMAND_NOT_FOUND
	case guestv1.StartFailure_START_FAILURE_COMMAND_NOT_EXECUTABLE:
		return agboxv1.ErrorReason_COMMAND_NOT_EXECUTABLE
	case guestv1.StartFailure_START_FAILURE_USER_NOT_FOUND:
		return agboxv1.ErrorReason_USER_NOT_FOUND
	case guestv1.StartFailure_START_FAILURE_DIRECTORY_NOT_FOUND:
		return agboxv1.ErrorReason_DIRECTORY_NOT_FOUND
	case guestv1.StartFailure_START_FAILURE_NOT_RECORDED:
		return agboxv1.ErrorReason_FILE_SYSTEM_FULL
	}
	return agboxv1.ErrorReason_EXEC_START_FAILED
}
