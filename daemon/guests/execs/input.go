package execs

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/fault"
)

// WriteStdin gives bytes to the standard input or the terminal of an exec that
// was started. offset is their place in all that the writer writes; what the
// process has been given already is skipped, also after this daemon or the link
// was replaced. It returns when the bytes are written, which takes as long as the
// process does not read. written counts the writer's bytes in all; open is false
// when the exec has ended or reads no input any more.
func (r *Runner) WriteStdin(ctx context.Context, sandboxID, execID, writer string, offset uint64, data []byte, eof bool) (written uint64, open bool, err error) {
	for tries := 0; ; tries++ {
		lk, err := r.links.Wait(ctx, sandboxID)
		if err != nil {
			if errdefs.IsFailedPrecondition(err) {
				return offset, false, nil // it ends with its sandbox, if it has not ended yet
			}
			return 0, false, err
		}
		written, open, err = lk.Conn.WriteStdin(ctx, execID, writer, offset, data, eof)
		pause := time.Duration(0)
		switch {
		case err == nil && open && written > offset && written < offset+uint64(len(data)):
			// The supervisor keeps nothing long for a process that does not read.
			offset, data = written, data[written-offset:]
		case err == nil && open && written < offset+uint64(len(data)):
		case err == nil && !open && written == 0 && tries < unheardTries && young(lk, r.now()) && !r.ended(execID):
			pause = unheardPause // the supervisor may be about to hear of it
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

// inputPause is the pause before input or a size is handed over again that the link
// or the supervisor could not take.
const inputPause = 20 * time.Millisecond

const (
	// An exec that was accepted by a daemon that died may be handed over a moment
	// after the link is there. Input, or a kill, that comes earlier is tried again.
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

// Resize sets the window size of the terminal of an exec. That the exec has
// ended is no error. What a link took along when it broke goes over the next one.
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

// takesInput refuses an exec with input or a terminal where the supervisor is of
// a time before these: it would start the command without them.
func takesInput(ctx context.Context, lk *links.Link, req *agboxv1.CreateExecRequest) error {
	if !req.GetTty() && !req.GetStdin() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	_, _, err := lk.Conn.WriteStdin(ctx, req.GetExecId(), "probe", 0, nil, false)
	if errdefs.IsNotImplemented(err) {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
			"Sandbox %s was started by an older agbox, which knew neither standard input nor terminals. Stop and start the sandbox, or create a new one.",
			req.GetSandboxId()).With("sandbox_id", req.GetSandboxId())
	}
	return nil
}
