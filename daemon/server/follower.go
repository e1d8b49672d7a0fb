package server

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// chunkSize is the maximum data in one message of a log stream, in bytes. With its
	// envelope, a message has 256 KiB.
	chunkSize = 256<<10 - 256
	// batchLength is the maximum number of chunks in one message.
	batchLength = 256
	// slowReader is how long a client may read nothing while data is waiting for it.
	// Ending its stream then discards at most one message.
	slowReader = 10 * time.Second
	// restAfter is how long a follower of a quiet log keeps its files open.
	restAfter = time.Second
	// movedEvery is how many skipped bytes it takes until the client is informed about
	// the new position.
	movedEvery = 16 << 20
)

// chunks pools the buffers of followers. A follower of a quiet log holds none.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// follower is one log stream. It is owned by the handler's goroutine, except during
// deliver: then by the goroutine that reads and sends.
type follower struct {
	s                 *execCalls
	to                outputSender
	sandboxID, execID string
	// done is closed when the exec has ended.
	done <-chan struct{}
	// other is closed when the owner has something else to do: deliver and wait then return
	// early. It is nil if there is nothing else.
	other <-chan struct{}
	// at is the position of the stream as the client knows it.
	at logs.Cursor
	// batches means that the client accepts several chunks in one message. held are
	// chunks that are not sent yet.
	batches bool
	held    []*agboxv1.LogChunk
	// part is the part to send, if selective is set.
	part      logs.Part
	selective bool

	reader *logs.Reader
	watch  *notify.Watch
	// sends is odd while a message is being sent, and counts the messages.
	sends atomic.Int64
	// left means that the client read nothing. The goroutine that was sending then closes
	// everything.
	left bool
}

func (f *follower) close() {
	if !f.left {
		f.release()
	}
}

func (f *follower) release() {
	if f.watch != nil {
		f.watch.Close()
	}
	if f.reader != nil {
		_ = f.reader.Close()
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

// expired reports whether the part excludes everything that is written from now on.
func (f *follower) expired() bool { return !f.part.Until.IsZero() && !time.Now().Before(f.part.Until) }

// interrupted reports whether the owner has something else to do.
func (f *follower) interrupted() bool {
	select {
	case <-f.other:
		return true
	default:
		return false
	}
}

// outputSender receives what a follower reads. It may use a chunk's data only until
// sendChunk returns. If it is also a mover, it is informed about skipped output. If its
// follower makes batches, it is also a batchSender.
type outputSender interface {
	sendChunk(*agboxv1.LogChunk) error
	sendEnd(*agboxv1.LogEnd) error
}

// mover is informed where the stream continues after skipped bytes.
type mover interface {
	sendMoved(*agboxv1.LogCursor) error
}

// batchSender accepts several chunks at once. It may use them only until sendBatch
// returns.
type batchSender interface {
	sendBatch([]*agboxv1.LogChunk) error
}

// logSender sends the responses of FollowExecLogs and RunExec.
type logSender struct {
	stream grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]
}

func (l logSender) sendChunk(chunk *agboxv1.LogChunk) error {
	return l.stream.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Chunk{Chunk: chunk}})
}

func (l logSender) sendBatch(chunks []*agboxv1.LogChunk) error {
	return l.stream.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Batch{Batch: &agboxv1.LogBatch{Chunks: chunks}}})
}

func (l logSender) sendMoved(to *agboxv1.LogCursor) error {
	return l.stream.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Moved{Moved: to}})
}

func (l logSender) sendEnd(end *agboxv1.LogEnd) error {
	return l.stream.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_End{End: end}})
}

// move informs the client about the position of the stream if the client does not know
// it.
func (f *follower) move(to logs.Cursor) error {
	if to == f.at {
		return nil
	}
	return f.moveTo(to)
}

func (f *follower) moveTo(to logs.Cursor) error {
	if err := f.flush(); err != nil {
		return err
	}
	f.at = to
	m, ok := f.to.(mover)
	if !ok {
		return nil
	}
	f.sends.Add(1)
	defer f.sends.Add(1)
	return m.sendMoved(cursorMessage(to))
}

func cursorMessage(at logs.Cursor) *agboxv1.LogCursor {
	return &agboxv1.LogCursor{StdoutOffset: at.Stdout, StderrOffset: at.Stderr}
}

// send sends a chunk, or holds it for a batch. It first reports skipped output if that is
// in the same stream or is large.
func (f *follower) send(chunk logs.Chunk) error {
	after := f.reader.Cursor()
	before, known, other := after, &f.at.Stdout, after.Stderr-f.at.Stderr
	if chunk.Stream == logs.Stderr {
		before.Stderr, known, other = chunk.Offset, &f.at.Stderr, after.Stdout-f.at.Stdout
	} else {
		before.Stdout = chunk.Offset
	}
	if *known != chunk.Offset || other > movedEvery {
		if err := f.moveTo(before); err != nil {
			return err
		}
	}
	out := &agboxv1.LogChunk{
		Stream: agboxv1.LogStream(chunk.Stream),
		Offset: chunk.Offset,
		Data:   chunk.Data,

		DroppedBytes: chunk.Dropped,
	}
	if !chunk.Time.IsZero() {
		out.Time = timestamppb.New(chunk.Time)
	}
	*known = chunk.Offset + uint64(len(chunk.Data))
	f.held = append(f.held, out)
	if f.batches {
		return nil
	}
	return f.flush()
}

// flush sends the held chunks.
func (f *follower) flush() error {
	held := f.held
	f.held = f.held[:0]
	if len(held) == 0 {
		return nil
	}
	defer clear(held)
	f.sends.Add(1)
	defer f.sends.Add(1)
	if len(held) == 1 {
		return f.to.sendChunk(held[0])
	}
	return f.to.(batchSender).sendBatch(held)
}

func unreadable(execID string, cause error) error {
	if errors.Is(cause, unix.EMFILE) || errors.Is(cause, unix.ENFILE) {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
			"The daemon may open no further file for the log of exec %s; end some followers, or raise its limit (ulimit -n, LimitNOFILE=).", execID).
			With("exec_id", execID).Because(cause)
	}
	return fault.New(errdefs.ErrDataLoss, agboxv1.ErrorReason_LOG_UNREADABLE,
		"The log of exec %s cannot be read: %s", execID, cause).With("exec_id", execID).Because(cause)
}

// errSlow ends the stream of a client that has read nothing for a while.
func errSlow(execID string, after time.Duration) error {
	return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
		"The output of exec %s was not read for %v; go on from the cursor you have got to.", execID, after).With("exec_id", execID)
}
