package guest

import (
	"context"
	"math"
	"time"

	"github.com/agbox/agbox/internal/ids"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// stdinPause is the time between two attempts while the supervisor's buffers for
// unread input are full.
const stdinPause = 50 * time.Millisecond

// WriteStdin writes data to the standard input or the terminal of an exec. writer
// is a name of 1 to rpc.MaxWriter bytes chosen by the caller. offset is the
// position of data[0] in the stream of all bytes of this writer. The supervisor
// counts the bytes of each writer and skips those that it has counted already, so
// after a lost connection a caller can resend bytes whose fate it does not know. An
// offset beyond the count is errdefs.ErrInvalidArgument.
//
// WriteStdin blocks until all bytes are written, that is, as long as the process
// does not read. written is the number of this writer's bytes that were passed to
// the process, as far as known even if there is an error; without an error it is
// less than offset+len(data) only if open is false. open is false if the exec is
// not running or its input is closed. eof closes standard input after the data, or
// types the end-of-file character of the terminal. Empty data without eof only
// queries the count and never blocks.
//
// The protocol cannot cancel a call: after ctx is cancelled, the supervisor may still have
// up to rpc.MaxStdin of the bytes and writes them when it can. A later call of the
// same writer continues after them.
func (c *Conn) WriteStdin(ctx context.Context, execID, writer string, offset uint64, data []byte, eof bool) (written uint64, open bool, err error) {
	req := &guestv1.WriteStdinRequest{ExecId: execID, Writer: writer, Offset: offset}
	end := offset + uint64(len(data))
	for most := rpc.MaxStdin; ; {
		rest := data[req.Offset-offset:]
		req.Data = rest[:min(len(rest), most)]
		req.Eof = eof && len(req.Data) == len(rest)
		reply, err := call[guestv1.WriteStdinResponse](ctx, c, "Supervisor/WriteStdin", req)
		if codeOf(err) == rpc.ResourceExhausted && wait(ctx, stdinPause) {
			continue
		}
		if err != nil {
			return written, false, c.explain(ctx, err)
		}
		written = reply.GetOffset()
		if !reply.GetOpen() || written >= end && len(req.Data) == len(rest) {
			return written, reply.GetOpen(), nil
		}
		if written < req.Offset && len(req.Data) > 0 {
			return written, true, c.violation("it lost input that it had counted")
		}
		// If the process read nothing, send a small piece next: the supervisor blocks
		// on that instead of returning it.
		most = rpc.MaxStdin
		if written == req.Offset && len(req.Data) > 0 {
			most = rpc.SmallStdin
			// The pause only matters if the supervisor is hostile and returns at once.
			if !wait(ctx, stdinPause) {
				return written, true, c.explain(ctx, ctx.Err())
			}
		}
		req.Offset = min(written, end)
	}
}

// wait waits for d. It returns false if ctx is done first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Resize sets the window size of an exec's terminal; the kernel then sends SIGWINCH
// to its foreground processes. Rows and columns are 1 to 65535. False means that the
// exec is not running. An exec without a terminal is errdefs.ErrInvalidArgument.
func (c *Conn) Resize(ctx context.Context, execID string, rows, columns uint32) (bool, error) {
	reply, err := call[guestv1.ResizeResponse](ctx, c, "Supervisor/Resize", &guestv1.ResizeRequest{ExecId: execID, Rows: rows, Columns: columns})
	return c.running(ctx, reply, err)
}

// MaxProcesses is the greatest number of processes that Processes lists.
const MaxProcesses = 4096

// maxUser is more than the length of the name of a user in a list of processes, in bytes.
const maxUser = 256

// Processes lists the processes of the container, ordered by pid. more means that there are
// more than MaxProcesses, which are left out. A supervisor that is too old fails with
// errdefs.ErrNotImplemented.
func (c *Conn) Processes(ctx context.Context) (list []*guestv1.Process, at time.Time, more bool, err error) {
	for after := uint32(0); ; {
		page, err := call[guestv1.ProcessesResponse](ctx, c, "Supervisor/Processes", &guestv1.ProcessesRequest{AfterPid: after})
		if err != nil {
			return nil, time.Time{}, false, c.explain(ctx, err)
		}
		for _, p := range page.GetProcesses() {
			if what := invalidProcess(p, after); what != "" {
				return nil, time.Time{}, false, c.violation("it sent " + what)
			}
			after = p.GetPid()
		}
		if page.GetAt().CheckValid() != nil || page.GetMore() && len(page.GetProcesses()) == 0 {
			return nil, time.Time{}, false, c.violation("it sent a list of processes that is not valid")
		}
		if at.IsZero() {
			at = page.GetAt().AsTime()
		}
		list, more = append(list, page.GetProcesses()...), page.GetMore()
		if len(list) >= MaxProcesses {
			more = more || len(list) > MaxProcesses
			return list[:MaxProcesses], at, more, nil
		}
		if !more {
			return list, at, false, nil
		}
	}
}

// invalidProcess describes the first invalid field of a process that stands after the one with
// the pid after in a list; it is empty if the process is valid.
func invalidProcess(p *guestv1.Process, after uint32) string {
	switch {
	case p.GetPid() <= after:
		return "processes in a wrong order"
	case len(p.GetUser()) > maxUser, len(p.GetState()) > maxState, len(p.GetCommand()) > rpc.MaxRecordedText:
		return "a process with a text that is too long"
	case p.GetExecId() != "" && !ids.Valid(p.GetExecId()):
		return "a process of an exec with an id that is not valid"
	case p.GetStartedAt().CheckValid() != nil:
		return "a process with a start that does not exist"
	case p.GetCpuMs() > uint64(math.MaxInt64/time.Millisecond), p.GetMemoryBytes() > math.MaxInt64:
		return "a process with a usage that is too large"
	}
	return ""
}
