package server

import (
	"context"
	"errors"
	"io"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
)

// read is the work of deliver.
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

// give sends what is in the log, or with last set what is before its end. In the
// end it may still hold chunks, which lie in buf.
func (f *follower) give(buf []byte, end logs.Cursor, last bool) error {
	free := buf
	for !last || !reached(f.reader.Cursor(), end) {
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
			return nil // written after the end; what was before it has all been given
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

// giveGaps sends the gaps behind the last byte. There is one if output was dropped
// until the exec ended, and one for each time that a process in the background
// continued. A supervisor does not write more than maxGaps.
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

// reached tells whether nothing before end is missing at a cursor.
func reached(at, end logs.Cursor) bool { return at.Stdout >= end.Stdout && at.Stderr >= end.Stderr }

// pastEnd tells whether a chunk begins behind end. A gap at end does not.
func pastEnd(chunk logs.Chunk, end logs.Cursor) bool {
	last := end.Stdout
	if chunk.Stream == logs.Stderr {
		last = end.Stderr
	}
	return chunk.Offset > last || chunk.Offset == last && chunk.Dropped == 0
}

// open opens the files once they are there. An exec that could not be started
// has none, and an end without output is no failure.
func (f *follower) open(ctx context.Context) error {
	if f.reader != nil && !f.reader.Suspended() {
		return nil
	}
	dir, err := logs.OpenDir(f.s.paths.SandboxLogs(f.sandboxID))
	if err != nil {
		if f.ended() && errdefs.IsNotFound(err) {
			return f.gone()
		}
		return unreadable(f.execID, err)
	}
	defer dir.Close()
	if f.reader != nil {
		if err := f.reader.Resume(dir); err != nil {
			return unreadable(f.execID, err)
		}
		return nil
	}
	reader, err := dir.Open(f.execID, f.at)
	switch {
	case err == nil:
		f.reader = reader
		return f.choose(ctx)
	case !errdefs.IsNotFound(err):
		return unreadable(f.execID, err)
	case f.at != logs.Cursor{}:
		return f.gone()
	}
	f.part.Tail = false // all that is written later is new
	return nil
}

// choose has the reader give what is asked for only.
func (f *follower) choose(ctx context.Context) error {
	if !f.selective {
		return nil
	}
	if f.part.Tail && f.ended() {
		// The last lines may be such as no record tells of.
		status, err := f.s.execStatus(ctx, f.sandboxID, f.execID)
		if err != nil {
			return err
		}
		f.giveUp(status)
	}
	if err := f.reader.Select(ctx, f.part); err != nil {
		return unreadable(f.execID, err)
	}
	if !f.part.Tail {
		return nil
	}
	// A client that comes again needs it, also before it has got a byte.
	return f.moveTo(f.reader.Cursor())
}

// giveUnindexed sends what the process wrote and no record tells of. It has no
// time, so since and until leave nothing of it out; but where a record was met that
// is beyond until, all of it is.
func (f *follower) giveUnindexed(ctx context.Context, status *agboxv1.ExecStatus) error {
	if f.reader == nil || f.reader.Over() || !f.giveUp(status) {
		return nil
	}
	return f.deliver(ctx, true)
}

// giveUp has the reader wait for no further record, if none comes for output that
// there is. A process in the background of an exec that exited may write on: there,
// only the output that was counted is known to be written for good. Of an exec that
// was lost, or killed with its container, nobody counted it, and nobody writes.
func (f *follower) giveUp(status *agboxv1.ExecStatus) bool {
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

func (f *follower) gone() error {
	return unreadable(f.execID, errors.New("its files are gone"))
}
