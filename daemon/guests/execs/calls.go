package execs

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// tell makes a call that reports whether the exec is running, and repeats it while that
// answer may be temporary: an exec that was just accepted may not have reached its
// supervisor, and an exec that has just ended may not have reached the ledger.
func (r *Runner) tell(ctx context.Context, sandboxID, execID string, call func(context.Context, *links.Link) (bool, error)) error {
	lk, err := r.links.Wait(ctx, sandboxID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	for range unheardTries {
		running, err := call(ctx, lk)
		if err != nil || running {
			return err
		}
		select {
		case <-r.ledger.ExecDone(execID):
			return NotRunning(execID)
		case <-time.After(unheardPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return NotRunning(execID)
}

// NotRunning is the error of a call that needs a running exec.
func NotRunning(execID string) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL,
		"Exec %s has ended.", execID).With("exec_id", execID)
}

// WriteStdin writes bytes to the standard input or the terminal of a started exec. offset
// is their position in the input of the writer. Bytes that the process has already
// received are skipped, even if this daemon or the link was replaced. It returns when the
// bytes are written, and blocks while the process does not read. written is the total
// number of the writer's bytes. open is false if the exec has ended or its input is
// closed.
func (r *Runner) WriteStdin(ctx context.Context, sandboxID, execID, writer string, offset uint64, data []byte, eof bool) (written uint64, open bool, err error) {
	for tries := 0; ; tries++ {
		lk, err := r.links.Wait(ctx, sandboxID)
		if err != nil {
			if errdefs.IsFailedPrecondition(err) {
				return offset, false, nil // the exec ends with its sandbox, if it has not ended yet
			}
			return 0, false, err
		}
		written, open, err = lk.Conn.WriteStdin(ctx, execID, writer, offset, data, eof)
		pause := time.Duration(0)
		switch {
		case err == nil && open && written > offset && written < offset+uint64(len(data)):
			// The supervisor does not keep bytes for long if the process does not read.
			offset, data = written, data[written-offset:]
		case err == nil && open && written < offset+uint64(len(data)):
		case err == nil && !open && written == 0 && tries < unheardTries && young(lk, r.now()) && !r.ended(execID):
			pause = unheardPause // the supervisor may not have received the exec yet
		case err == nil, ctx.Err() != nil:
			return written, open, err
		case errdefs.IsUnavailable(err), errdefs.IsResourceExhausted(err):
			pause = inputPause
		default:
			return written, open, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, false, ctx.Err()
		}
	}
}

// inputPause is the pause before input or a size is sent again after the link or the
// supervisor could not take it.
const inputPause = 20 * time.Millisecond

const (
	// An exec that a crashed daemon accepted may be sent to the supervisor shortly after
	// the link is made. Earlier input or an earlier kill is retried.
	unheardPause = 10 * time.Millisecond
	unheardTries = 50
	youngLink    = 2 * time.Second
)

func young(lk *links.Link, now time.Time) bool { return now.Sub(lk.Made) < youngLink }

func (r *Runner) ended(execID string) bool {
	select {
	case <-r.ledger.ExecDone(execID):
		return true
	default:
		return false
	}
}

// Resize sets the window size of the terminal of an exec. It is not an error if the exec
// has ended. If the link breaks during the call, Resize repeats it over the next link.
func (r *Runner) Resize(ctx context.Context, sandboxID, execID string, rows, columns uint32) error {
	for {
		lk, err := r.links.Wait(ctx, sandboxID)
		if err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, links.CallTimeout)
		_, err = lk.Conn.Resize(call, execID, rows, columns)
		unanswered := call.Err() != nil
		cancel()
		if unanswered || !errdefs.IsUnavailable(err) {
			return err
		}
		select {
		case <-time.After(inputPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Processes lists the processes in the primary of a sandbox, as its supervisor sees them,
// without the names of their execs.
func (r *Runner) Processes(ctx context.Context, sandboxID string) (*agboxv1.ListProcessesResponse, error) {
	lk, err := r.links.Wait(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	list, at, more, err := lk.Conn.Processes(ctx)
	if err != nil {
		return nil, err
	}
	resp := &agboxv1.ListProcessesResponse{At: timestamppb.New(at), Truncated: more}
	for _, p := range list {
		resp.Processes = append(resp.Processes, &agboxv1.Process{
			Pid: p.GetPid(), ParentPid: p.GetParentPid(), User: p.GetUser(), State: p.GetState(), StartedAt: onHost(p.GetStartedAt()),
			CpuTime: durationpb.New(time.Duration(p.GetCpuMs()) * time.Millisecond), MemoryBytes: p.GetMemoryBytes(),
			Command: p.GetCommand(), ExecId: p.GetExecId(),
		})
	}
	return resp, nil
}

// Look says how files in a sandbox and its limits are now, as a user of the sandbox may know it.
func (r *Runner) Look(ctx context.Context, sandboxID, user string, paths []string) (journal.Seen, error) {
	lk, err := r.links.Wait(ctx, sandboxID)
	if err != nil {
		return journal.Seen{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	return lk.Conn.Look(ctx, user, paths)
}

// Drain lets a running exec of an agent save its work, and has the supervisor end it when the
// time for that is over, even if the daemon goes away. A second call changes nothing. If the
// supervisor is too old, the error is errdefs.ErrNotImplemented.
func (r *Runner) Drain(ctx context.Context, sandboxID string, req *guestv1.DrainRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Drain(ctx, req)
	})
}

// Pause tells an incarnation that its agent is paused, or is not any more. If the supervisor is
// too old, the error is errdefs.ErrNotImplemented.
func (r *Runner) Pause(ctx context.Context, sandboxID string, req *guestv1.PauseRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Pause(ctx, req)
	})
}

// Allot tells an incarnation what the children of its agent have of the budget. If the
// supervisor is too old, the error is errdefs.ErrNotImplemented.
func (r *Runner) Allot(ctx context.Context, sandboxID string, req *guestv1.AllotRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Allot(ctx, req)
	})
}

// Answer answers a request of an incarnation, which need not wait for it any more.
func (r *Runner) Answer(ctx context.Context, sandboxID string, req *guestv1.AnswerRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		_, err := lk.Conn.Answer(ctx, req)
		return true, err
	})
}

// Cancel ends a running exec: SIGTERM to its process group and, after the grace period,
// SIGKILL to its tree. It returns when the supervisor has accepted the request. The
// supervisor then completes it even if the daemon goes away.
func (r *Runner) Cancel(ctx context.Context, sandboxID, execID string, grace time.Duration) error {
	return r.tell(ctx, sandboxID, execID, func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Cancel(ctx, execID, grace)
	})
}

// Reap is Cancel for an incarnation of an agent that must be replaced. Its end says so.
func (r *Runner) Reap(ctx context.Context, sandboxID, execID string, grace time.Duration) error {
	return r.tell(ctx, sandboxID, execID, func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Reap(ctx, execID, grace)
	})
}

// Signal sends a signal to the process group of a running exec.
func (r *Runner) Signal(ctx context.Context, sandboxID, execID string, signal int32) error {
	return r.tell(ctx, sandboxID, execID, func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Signal(ctx, execID, signal)
	})
}
