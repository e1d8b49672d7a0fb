package server

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/logs"
)

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
