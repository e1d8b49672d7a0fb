package guest

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// stdinPause is how long a caller waits when the supervisor holds all the input
// of stuck processes that it can.
const stdinPause = 50 * time.Millisecond

// WriteStdin gives data to the standard input or the terminal of an exec. writer
// is a name of 1 to wire.MaxWriter bytes that the caller made up, and offset the
// place of the first byte in all that this writer writes. What is before the
// count of the writer is skipped, so that after a lost connection a caller sends
// again what it does not know to have arrived. A place beyond the count is
// errdefs.ErrInvalidArgument.
//
// It returns when all bytes are written, which takes as long as the process does
// not read. written is how many bytes of this writer the process has been given
// in all, as far as is known also with an error; without one it is less than
// offset+len(data) only when open is false. open is false when the exec is not
// running, or reads no input (any more). eof closes standard input after the
// data, or types the end-of-file character of the terminal. Empty data without
// eof asks for the count and never waits.
//
// The protocol cannot end one call: after ctx has ended the supervisor may still
// have up to wire.MaxStdin of the bytes and writes them when it can. A later call
// of the same writer goes on behind them.
func (c *Conn) WriteStdin(ctx context.Context, execID, writer string, offset uint64, data []byte, eof bool) (written uint64, open bool, err error) {
	req := &guestv1.WriteStdinRequest{ExecId: execID, Writer: writer, Offset: offset}
	end := offset + uint64(len(data))
	for most := wire.MaxStdin; ; {
		rest := data[req.Offset-offset:]
		req.Data = rest[:min(len(rest), most)]
		req.Eof = eof && len(req.Data) == len(rest)
		reply, err := c.client.WriteStdin(ctx, req)
		if status.Code(err) == codes.ResourceExhausted && wait(ctx, stdinPause) {
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
			return written, true, c.lie("it lost input that it had counted")
		}
		// A piece that nobody read came back. What waits next is small.
		most = wire.MaxStdin
		if written == req.Offset && len(req.Data) > 0 {
			most = wire.SmallStdin
			// One that is honest has waited already.
			if !wait(ctx, stdinPause) {
				return written, true, c.explain(ctx, ctx.Err())
			}
		}
		req.Offset = min(written, end)
	}
}

// wait returns false if ctx ends before d has passed.
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

// Resize sets the window size of the terminal of an exec; the kernel tells its
// foreground processes. Both numbers are 1 to 65535. False means that the exec is
// not running. An exec without a terminal is errdefs.ErrInvalidArgument.
func (c *Conn) Resize(ctx context.Context, execID string, rows, columns uint32) (bool, error) {
	reply, err := c.client.Resize(ctx, &guestv1.ResizeRequest{ExecId: execID, Rows: rows, Columns: columns})
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetRunning(), nil
}
