package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Cursor is a position in the output of an exec: the number of bytes before it in each
// stream.
type Cursor struct {
	Stdout uint64
	Stderr uint64
}

// LogOptions selects the output to read.
type LogOptions struct {
	// Cursor is where to start. The zero value is the beginning.
	Cursor Cursor
	// Follow waits for more output until the exec has ended.
	Follow bool
	// Since and Until select output by the clock at the time of writing: from Since on,
	// and before Until. Zero is no bound. With Follow, reading ends once Until has
	// passed.
	Since, Until time.Time
	// TailLines, if not nil, starts with this many last lines of the selected output.
	// Cursor must be zero then.
	TailLines *uint64
	// Streams are the streams to read. None means both.
	Streams []agboxv1.LogStream
}

// LogItem is a piece of output or, as the last one, the end of it.
type LogItem struct {
	// Stream is the stream of Data.
	Stream agboxv1.LogStream
	// Offset is the offset of the first byte of Data in the stream.
	Offset uint64
	// Data is not empty unless End, Created or Dropped is set. It belongs to the caller.
	Data []byte
	// Dropped is not 0 in a gap: the command wrote this many bytes at Offset that were
	// not kept, because the disk or the log was full.
	Dropped uint64
	// Time is when the first byte was read from the process, or zero if unknown.
	Time time.Time
	// Cursor is the position after this item. Start there to continue.
	Cursor Cursor
	// Created is set in the first item of RunLogs. The exec is committed then.
	Created *agboxv1.CreateExecResponse
	// End is set only in the last item. Its exec has ended if Follow was set and Until
	// did not come first.
	End *agboxv1.LogEnd
}

// FollowLogs reads the output of an exec in order. If the daemon goes away, the client
// waits for it and continues at the same byte: no byte is lost or repeated. The last pair
// has the end or an error. A cursor to output that is no longer kept is ErrOutOfRange.
//
// A name is looked up again after each loss, so use the id for long reads.
func (c *Client) FollowLogs(ctx context.Context, exec string, o LogOptions) iter.Seq2[LogItem, error] {
	return output{exec: exec, o: o}.items(ctx, c)
}

// request returns the request for the rest of the output from a cursor on. started means
// that reading has begun. Then the cursor also replaces the tail.
func (o LogOptions) request(exec string, at Cursor, started bool) *agboxv1.FollowExecLogsRequest {
	in := &agboxv1.FollowExecLogsRequest{ExecId: exec, Follow: o.Follow, Streams: o.Streams, Batch: true}
	if o.TailLines != nil && !started && at == (Cursor{}) {
		in.TailLines = o.TailLines
	} else {
		in.Cursor = &agboxv1.LogCursor{StdoutOffset: at.Stdout, StderrOffset: at.Stderr}
	}
	if !o.Since.IsZero() {
		in.Since = timestamppb.New(o.Since)
	}
	if !o.Until.IsZero() {
		in.Until = timestamppb.New(o.Until)
	}
	return in
}

// RunLogs runs a command and reads its output as FollowLogs does. It needs only one call
// to the daemon.
func (c *Client) RunLogs(ctx context.Context, in *agboxv1.CreateExecRequest) iter.Seq2[LogItem, error] {
	in = repeatableExec(in)
	return output{exec: in.GetExecId(), o: LogOptions{Follow: true}, create: in}.items(ctx, c)
}

// output reads the output of one exec.
type output struct {
	exec string
	o    LogOptions
	// create is the exec to create first. It is nil if the exec exists.
	create *agboxv1.CreateExecRequest
	// from, if not nil, is the start position. It is advanced while reading.
	from *logPlace
	// moved, if not nil, is called when the position changes without an item.
	moved func()
}

// items reads until the end. It repeats a create until the first message shows that the
// exec was created. The request key makes the repetition harmless.
func (p output) items(ctx context.Context, c *Client) iter.Seq2[LogItem, error] {
	return sequence(func(give func(LogItem) bool) error {
		at, create, started := p.from, p.create, false
		if at == nil {
			at = &logPlace{Cursor: p.o.Cursor}
		}
		open := func(ctx context.Context, next *agboxv1.FollowExecLogsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[agboxv1.FollowExecLogsResponse], error) {
			if create != nil {
				return c.sandboxes.RunExec(ctx, create)
			}
			return c.sandboxes.FollowExecLogs(ctx, next)
		}
		next := func() *agboxv1.FollowExecLogsRequest { return p.o.request(p.exec, at.resume(), started) }
		return follow(ctx, c, open, endless, next, func(m *agboxv1.FollowExecLogsResponse) (bool, error) {
			create, started = nil, true
			if moved := m.GetMoved(); moved != nil {
				at.Cursor = Cursor{Stdout: moved.GetStdoutOffset(), Stderr: moved.GetStderrOffset()}
				if p.moved != nil {
					p.moved()
				}
				return false, nil
			}
			if created := m.GetCreated(); created != nil {
				return !give(LogItem{Cursor: at.Cursor, Created: created}), nil
			}
			if end := m.GetEnd(); end != nil {
				give(LogItem{Cursor: at.Cursor, End: end})
				return true, nil
			}
			chunks := m.GetBatch().GetChunks()
			if chunk := m.GetChunk(); chunk != nil {
				chunks = []*agboxv1.LogChunk{chunk}
			}
			for _, chunk := range chunks {
				item, err := at.take(chunk)
				if err != nil {
					return false, err
				}
				if !item.empty() && !give(item) {
					return true, nil
				}
			}
			return false, nil
		})
	})
}

func streamName(s agboxv1.LogStream) string {
	if s == agboxv1.LogStream_LOG_STREAM_STDERR {
		return "stderr"
	}
	return "stdout"
}

// logPlace is a reader's position in the output of an exec. A cursor does not say whether
// the gaps at it were already reported, and the daemon repeats them. So logPlace counts
// them.
type logPlace struct {
	Cursor
	// gaps has the gaps of stdout and stderr.
	gaps [2]gapsAt
}

// gapsAt counts the gaps of one stream at one offset.
type gapsAt struct {
	offset uint64
	// given is the number of dropped bytes reported to the reader there. repeated is how
	// many of them the daemon may report again.
	given, repeated uint64
}

// resume returns where a new call starts.
func (p *logPlace) resume() Cursor {
	for i := range p.gaps {
		p.gaps[i].repeated = p.gaps[i].given
	}
	return p.Cursor
}

// take advances past a chunk and returns its new part. The item may be empty.
func (p *logPlace) take(chunk *agboxv1.LogChunk) (LogItem, error) {
	at, gaps := &p.Stdout, &p.gaps[0]
	switch chunk.GetStream() {
	case agboxv1.LogStream_LOG_STREAM_STDOUT:
	case agboxv1.LogStream_LOG_STREAM_STDERR:
		at, gaps = &p.Stderr, &p.gaps[1]
	default:
		// A stream of a later version. A cursor of this version cannot count it.
		return LogItem{}, nil
	}
	if chunk.GetOffset() > *at {
		return LogItem{}, &Error{Code: codes.DataLoss, Message: fmt.Sprintf(
			"agboxd left out the bytes %d to %d of %s. Read the log again from the start.",
			*at, chunk.GetOffset(), streamName(chunk.GetStream()))}
	}
	known := min(*at-chunk.GetOffset(), uint64(len(chunk.GetData())))
	item := LogItem{Stream: chunk.GetStream(), Offset: *at, Data: chunk.GetData()[known:]}
	if chunk.GetOffset() == *at {
		item.Dropped = gaps.take(*at, chunk.GetDroppedBytes())
	}
	if t := chunk.GetTime(); t != nil {
		item.Time = t.AsTime()
	}
	*at += uint64(len(item.Data))
	item.Cursor = p.Cursor
	return item, nil
}

// take returns how many of the bytes dropped at an offset are new to the reader.
func (g *gapsAt) take(offset, dropped uint64) uint64 {
	if g.offset != offset {
		*g = gapsAt{offset: offset}
	}
	known := min(g.repeated, dropped)
	g.repeated -= known
	g.given += dropped - known
	return dropped - known
}

// empty reports whether an item has no content.
func (i LogItem) empty() bool {
	return len(i.Data) == 0 && i.Dropped == 0 && i.Created == nil && i.End == nil
}
