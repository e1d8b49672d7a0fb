package server

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// read does the work of deliver.
func (f *follower) read(ctx context.Context, last bool) error {
	if err := f.open(ctx); err != nil || f.reader == nil {
		return err
	}
	end, err := f.reader.Size()
	if err != nil {
		return unreadable(f.execID, err)
	}
	if f.at.Beyond(end) {
		return fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE,
			"The log of exec %s holds %d and %d bytes, the cursor points to %d and %d; start from the beginning or from where you got to.",
			f.execID, end.Stdout, end.Stderr, f.at.Stdout, f.at.Stderr).With("exec_id", f.execID)
	}
	buf := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(buf)
	if err := f.give(buf[:], end, last); err != nil {
		return err
	}
	return f.flush()
}

// give sends what is in the log or, with last set, what is before end. Afterwards some
// chunks may still be held; their data is in buf.
func (f *follower) give(buf []byte, end logs.Cursor, last bool) error {
	free := buf
	for !last || !reached(f.reader.Cursor(), end) {
		if f.interrupted() {
			return f.move(f.reader.Cursor())
		}
		if len(free) < chunkSize/2 || len(f.held) == batchLength {
			if err := f.flush(); err != nil {
				return err
			}
			free = buf
		}
		chunk, err := f.reader.Next(free)
		switch {
		case errors.Is(err, io.EOF):
			return f.move(f.reader.Cursor())
		case err != nil:
			return unreadable(f.execID, err)
		case last && pastEnd(chunk, end) && f.reader.Ordered():
			return nil // written after the end; everything before it was sent
		}
		if err := f.send(chunk); err != nil {
			return err
		}
		if len(f.held) > 0 {
			free = free[len(chunk.Data):]
		}
	}
	if err := f.giveGaps(); err != nil {
		return err
	}
	return f.move(f.reader.Cursor())
}

// giveGaps sends the gaps after the last byte. There is one if output was dropped until
// the exec ended, and one for each time that a background process continued. A supervisor
// writes at most maxGaps.
func (f *follower) giveGaps() error {
	const maxGaps = 16
	for range maxGaps {
		gap, ok := f.reader.Gap()
		if !ok {
			break
		}
		if err := f.send(gap); err != nil {
			return err
		}
	}
	return nil
}

// reached reports whether a cursor has reached end in both streams.
func reached(at, end logs.Cursor) bool { return at.Stdout >= end.Stdout && at.Stderr >= end.Stderr }

// pastEnd reports whether a chunk starts after end. A gap at end does not.
func pastEnd(chunk logs.Chunk, end logs.Cursor) bool {
	last := end.Stdout
	if chunk.Stream == logs.Stderr {
		last = end.Stderr
	}
	return chunk.Offset > last || chunk.Offset == last && chunk.Dropped == 0
}

// open opens the files once they exist. An exec that could not be started has none, which
// is not an error.
func (f *follower) open(ctx context.Context) error {
	if f.reader != nil && !f.reader.Suspended() {
		return nil
	}
	dir, err := logs.OpenDir(f.s.paths.SandboxLogs(f.sandboxID))
	if err != nil {
		if errdefs.IsNotFound(err) {
			return f.lost(ctx)
		}
		return unreadable(f.execID, err)
	}
	defer dir.Close()
	if f.reader != nil {
		err := f.reader.Resume(dir)
		switch {
		case err == nil:
			return nil
		case errdefs.IsNotFound(err):
			return f.lost(ctx)
		}
		return unreadable(f.execID, err)
	}
	reader, err := dir.Open(f.execID, f.at)
	switch {
	case err == nil:
		f.reader = reader
		return f.choose(ctx)
	case !errdefs.IsNotFound(err):
		return unreadable(f.execID, err)
	case f.at != logs.Cursor{}:
		return f.lost(ctx)
	}
	f.part.Tail = false // all later output is new
	return nil
}

// choose restricts the reader to the requested part.
func (f *follower) choose(ctx context.Context) error {
	if !f.selective {
		return nil
	}
	if f.part.Tail && f.ended() {
		// The last lines may not be in the index.
		status, err := f.s.execStatus(ctx, f.sandboxID, f.execID)
		if err != nil {
			return err
		}
		f.stopWaiting(status)
	}
	if err := f.reader.Select(ctx, f.part); err != nil {
		return unreadable(f.execID, err)
	}
	if !f.part.Tail {
		return nil
	}
	// A client that resumes needs the position, even before it has received a byte.
	return f.moveTo(f.reader.Cursor())
}

// stopWaiting stops waiting for index records that will never cover existing output. A
// background process of an exec that exited may continue to write; then only the output
// that was counted at its end is sure to be complete. If the exec was lost, or killed
// with its container, nobody counted its output, and nobody writes any more.
func (f *follower) stopWaiting(status *agboxv1.ExecStatus) bool {
	if status.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		return false
	}
	exited := status.GetUserTime() != nil
	counted := logs.Cursor{Stdout: status.GetStdoutBytes(), Stderr: status.GetStderrBytes()}
	if exited && (reached(f.reader.Cursor(), counted) || reached(f.reader.Indexed(), counted)) {
		return false
	}
	f.reader.Finish()
	return true
}

// removedNotice is about an exec whose output went with its sandbox.
const removedNotice = "The output was removed with the sandbox. \"agbox rm --keep-logs\" keeps it."

// removed reports whether the output was, or is being, removed with the sandbox.
func (f *follower) removed(ctx context.Context) bool {
	sb, err := f.s.ledger.FindSandbox(ctx, f.sandboxID)
	return err == nil && sb.RemoveLogs
}

// lost ends the reading of a log whose files were removed. It is no error if that was asked
// for: finish says so.
func (f *follower) lost(ctx context.Context) error {
	if f.ended() && f.removed(ctx) {
		f.reader = nil
		return nil
	}
	return f.gone()
}

// gone is the error for a log whose files were removed.
func (f *follower) gone() error {
	folder := f.s.paths.SandboxLogs(f.sandboxID)
	message := fmt.Sprintf("The log of exec %s was removed from %s while the command ran, so its output cannot be read. If the whole folder was removed, stop and start the sandbox, which makes it again.",
		f.execID, folder)
	if f.ended() {
		message = fmt.Sprintf("The log of exec %s was removed from %s, so its output cannot be read. \"agbox inspect %s\" still shows how it ended.",
			f.execID, folder, f.execID)
	}
	return fault.New(errdefs.ErrDataLoss, agboxv1.ErrorReason_LOG_UNREADABLE, "%s", message).With("exec_id", f.execID)
}
