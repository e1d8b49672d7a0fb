package client

import (
	"context"
	"iter"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/ids"
)

// Cursor is a place in the output of an exec: the bytes before it in each stream.
type Cursor struct {
	Stdout uint64
	Stderr uint64
}

// LogOptions says which output to read.
type LogOptions struct {
	// Cursor is where to start; the zero value is the beginning.
	Cursor Cursor
	// Follow waits for more until the exec has ended.
	Follow bool
	// Since and Until leave out what was written before Since or from Until on, by
	// the clock at the time of writing; zero is no bound. With Follow, Until ends
	// the reading when it has passed.
	Since, Until time.Time
	// TailLines, if not nil, starts with the last so many lines of what is chosen;
	// Cursor must be zero then.
	TailLines *uint64
	// Streams are the ones to read; none means both.
	Streams []agboxv1.LogStream
}

// LogItem is a piece of output or, last, the end of it.
type LogItem struct {
	// Stream tells where Data was written to.
	Stream agboxv1.LogStream
	// Offset is the place of the first byte of Data in the stream.
	Offset uint64
	// Data is never empty, unless End, Created or Dropped is set. It belongs to the caller.
	Data []byte
	// Dropped is not 0 in a gap: the command wrote so many bytes at Offset that were
	// not kept, because the disk or the log was full.
	Dropped uint64
	// Time is when the first byte was read from the process; zero when not known.
	Time time.Time
	// Cursor is the place after this item: start there to go on.
	Cursor Cursor
	// Created is set in the first item of RunLogs: the exec is committed.
	Created *agboxv1.CreateExecResponse
	// End is set in the last item only. Its exec has ended if Follow was set and
	// Until has not come first.
	End *agboxv1.LogEnd
}

// FollowLogs reads the output of an exec in order. A daemon that goes away in
// the middle is waited for, and the reading goes on at the byte where it broke
// off: no byte is lost or repeated. The last pair holds the end or an error; a
// cursor that points to what is no longer kept is ErrOutOfRange.
//
// A name is looked up anew after each loss, so a long reading should use the id.
func (c *Client) FollowLogs(ctx context.Context, exec string, o LogOptions) iter.Seq2[LogItem, error] {
	return output{exec: exec, o: o}.items(ctx, c)
}

// request asks for what is left from a cursor on. started tells that the reading has
// begun: then the cursor also stands for the tail.
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

// RunLogs runs a command and reads its output as FollowLogs does. Create and
// follow are one call to the daemon.
func (c *Client) RunLogs(ctx context.Context, in *agboxv1.CreateExecRequest) iter.Seq2[LogItem, error] {
	if in.GetExecId() == "" {
		in = proto.CloneOf(in)
		in.ExecId = ids.New()
	}
	return output{exec: in.GetExecId(), o: LogOptions{Follow: true}, create: in}.items(ctx, c)
}

// output is the reading of one exec's output.
type output struct {
	exec string
	o    LogOptions
	// create is the request to run first; nil if the exec exists.
	create *agboxv1.CreateExecRequest
	// from, if not nil, is where the reading starts, and is moved with it.
	from *logPlace
	// moved, if not nil, is called when the reading goes to a place without an item.
	moved func()
}

// items reads until the end. A create is repeated until the first message shows
// that it was carried out; its exec id makes that harmless.
func (p output) items(ctx context.Context, c *Client) iter.Seq2[LogItem, error] {
	return func(yield func(LogItem, error) bool) {
		at, create, started := p.from, p.create, false
		if at == nil {
			at = &logPlace{Cursor: p.o.Cursor}
		}
		f := feed[agboxv1.FollowExecLogsResponse]{
			open: func(ctx context.Context, api agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.FollowExecLogsResponse], error) {
				if create != nil {
					return api.RunExec(ctx, create)
				}
				return api.FollowExecLogs(ctx, p.o.request(p.exec, at.resume(), started))
			},
			take: func(m *agboxv1.FollowExecLogsResponse) (bool, error) {
				create, started = nil, true
				if moved := m.GetMoved(); moved != nil {
					at.Cursor = Cursor{Stdout: moved.GetStdoutOffset(), Stderr: moved.GetStderrOffset()}
					if p.moved != nil {
						p.moved()
					}
					return false, nil
				}
				if created := m.GetCreated(); created != nil {
					return !yield(LogItem{Cursor: at.Cursor, Created: created}, nil), nil
				}
				if end := m.GetEnd(); end != nil {
					yield(LogItem{Cursor: at.Cursor, End: end}, nil)
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
					if !item.empty() && !yield(item, nil) {
						return true, nil
					}
				}
				return false, nil
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(LogItem{}, err)
		}
	}
}

func streamName(s agboxv1.LogStream) string {
	if s == agboxv1.LogStream_LOG_STREAM_STDERR {
		return "stderr"
	}
	return "stdout"
}
