package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
)

// chunkSize is the most that one message of a log stream carries, in bytes.
const chunkSize = 256 << 10

// chunks lends buffers to followers while they have something to send: a
// follower of a quiet log holds none.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// FollowExecLogs streams output from a cursor on.
func (s *Server) FollowExecLogs(req *agboxv1.FollowExecLogsRequest, stream grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error {
	ctx := stream.Context()
	sandboxID, execID, err := s.Ledger.FindExec(ctx, req.GetExecId())
	if err != nil {
		return err
	}
	at := logs.Cursor{Stdout: req.GetCursor().GetStdoutOffset(), Stderr: req.GetCursor().GetStderrOffset()}
	return s.follow(stream, sandboxID, execID, at, req.GetFollow())
}

// follow sends the output of an exec, and at its end the status.
func (s *Server) follow(stream grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse], sandboxID, execID string, at logs.Cursor, follow bool) error {
	f := &follower{
		s: s, stream: stream, sandboxID: sandboxID, execID: execID,
		done: s.Ledger.ExecDone(execID), at: at,
	}
	defer f.close()
	return f.run(stream.Context(), follow)
}

// follower is one log stream. The handler's goroutine owns it.
type follower struct {
	s                 *Server
	stream            grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]
	sandboxID, execID string
	// done is closed when the exec has ended.
	done   <-chan struct{}
	at     logs.Cursor
	dir    *logs.Dir
	reader *logs.Reader
	watch  *notify.Watch
}

func (f *follower) close() {
	if f.watch != nil {
		f.watch.Close()
	}
	if f.reader != nil {
		_ = f.reader.Close()
	}
	if f.dir != nil {
		_ = f.dir.Close()
	}
}

// run sends what is there, waits for more if asked to, and closes with the
// status. What the process wrote before it ended is all sent before its status.
func (f *follower) run(ctx context.Context, follow bool) error {
	if err := f.openDir(follow); err != nil {
		return err
	}
	for {
		// In this order: what is in the log once the end is known is complete.
		ended := f.ended()
		if err := f.drain(ended || !follow); err != nil {
			return err
		}
		if ended || !follow {
			return f.finish(ctx)
		}
		if err := f.wait(ctx); err != nil {
			return err
		}
	}
}

func (f *follower) ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// openDir subscribes before anything is read, so that no write goes unnoticed.
func (f *follower) openDir(follow bool) error {
	path := f.s.Paths.SandboxLogs(f.sandboxID)
	dir, err := logs.OpenDir(path)
	if err != nil {
		if f.ended() && errdefs.IsNotFound(err) {
			return f.gone()
		}
		return unreadable(f.execID, err)
	}
	f.dir = dir
	if follow {
		if f.watch, err = f.s.Logs.Watch(path, f.execID); err != nil {
			return unreadable(f.execID, err)
		}
	}
	return nil
}

// drain sends all that is there. With last set it stops where the log ended
// when it was called: children in the background may write for ever.
func (f *follower) drain(last bool) error {
	if err := f.open(last); err != nil || f.reader == nil {
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
	for !last || !reached(f.at, end) {
		chunk, err := f.reader.Next(buf[:])
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return unreadable(f.execID, err)
		}
		if err := f.send(chunk); err != nil {
			return err
		}
		f.at = f.reader.Cursor()
	}
	return nil
}

// reached tells whether nothing before end is missing at a cursor.
func reached(at, end logs.Cursor) bool { return at.Stdout >= end.Stdout && at.Stderr >= end.Stderr }

// open opens the files once they are there. An exec that could not be started
// has none, and an end without output is no failure.
func (f *follower) open(last bool) error {
	if f.reader != nil || f.dir == nil {
		return nil
	}
	reader, err := f.dir.Open(f.execID, f.at)
	switch {
	case err == nil:
		f.reader = reader
	case !errdefs.IsNotFound(err):
		return unreadable(f.execID, err)
	case f.at != logs.Cursor{}:
		return f.gone()
	}
	return nil
}

func (f *follower) send(chunk logs.Chunk) error {
	out := &agboxv1.LogChunk{
		Stream: agboxv1.LogStream(chunk.Stream),
		Offset: chunk.Offset,
		Data:   chunk.Data,
	}
	if !chunk.Time.IsZero() {
		out.Time = timestamppb.New(chunk.Time)
	}
	return f.stream.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Chunk{Chunk: out}})
}

func (f *follower) wait(ctx context.Context) error {
	select {
	case <-f.watch.C():
		return nil
	case <-f.done:
		return nil
	case <-f.s.stopping:
		return errStopping()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish closes the stream with the exec as it is.
func (f *follower) finish(ctx context.Context) error {
	status, err := f.s.execStatus(ctx, f.sandboxID, f.execID)
	if err != nil {
		return err
	}
	end := &agboxv1.LogEnd{
		Exec:   status,
		Cursor: &agboxv1.LogCursor{StdoutOffset: f.at.Stdout, StderrOffset: f.at.Stderr},
	}
	if f.reader != nil {
		end.Notice = f.reader.Notice()
	}
	if want := (logs.Cursor{Stdout: status.GetStdoutBytes(), Stderr: status.GetStderrBytes()}); !reached(f.at, want) {
		end.Notice = "The log is shorter than what the command wrote: it was cut or removed."
	}
	return f.stream.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_End{End: end}})
}

func (f *follower) gone() error {
	return unreadable(f.execID, errors.New("its files are gone"))
}

func unreadable(execID string, cause error) error {
	return fault.New(errdefs.ErrDataLoss, agboxv1.ErrorReason_LOG_UNREADABLE,
		"The log of exec %s cannot be read: %s", execID, cause).With("exec_id", execID).Because(cause)
}

func errStopping() error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "The daemon is stopping; try again.")
}
