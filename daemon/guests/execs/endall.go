package execs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime/guest"
)

// EndAll ends every exec that is recorded as running in a sandbox whose primary does not
// run: with the status that the supervisor left on disk, or else as lost. missing means that the
// engine does not have the primary, so nobody saw it end, and it may be back with its execs.
func (r *Runner) EndAll(ctx context.Context, sandboxID string, missing bool) error {
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
	for _, exec := range sb.Execs {
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
	within := func(claimed *timestamppb.Timestamp, from time.Time) *timestamppb.Timestamp {
		switch {
		case claimed == nil:
			return nil
		case claimed.AsTime().Before(from):
			return timestamppb.New(from)
		case claimed.AsTime().After(now):
			return timestamppb.New(now)
		}
		return claimed
	}
	rec.StartedAt = within(rec.GetStartedAt(), from)
	if rec.GetStartedAt() != nil {
		from = rec.GetStartedAt().AsTime()
	}
	rec.FinishedAt = within(rec.GetFinishedAt(), from)
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
	if err := proto.Unmarshal(raw, rec); err != nil {
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
	return &agboxv1.ExecEventDetails{
		ExecId:       execID,
		ExecState:    agboxv1.ExecState_EXEC_STATE_FAILED,
		ExitCode:     lostExitCode,
		ErrorCode:    agboxv1.ErrorReason_EXEC_LOST.String(),
		ErrorMessage: sentence + "; its exit status is not known.",
	}
}

// unstartable ends an exec that was accepted but cannot be given to a supervisor.
func unstartable(execID string, err error) *agboxv1.ExecEventDetails {
	return &agboxv1.ExecEventDetails{
		ExecId:       execID,
		ExecState:    agboxv1.ExecState_EXEC_STATE_FAILED,
		ExitCode:     lostExitCode,
		ErrorCode:    fault.ReasonOf(err).String(),
		ErrorMessage: err.Error(),
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
