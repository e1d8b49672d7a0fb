package server

import (
	"context"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/logs"
)

// AttachExec connects a client with an exec: the handler follows the log, and a second
// goroutine receives what the client sends (attachinput.go). It receives the next message
// only after it forwarded the one before. So the flow control of the stream slows down a
// client that sends faster than the process reads.
func (s *execCalls) AttachExec(stream grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	a, err := s.newAttachment(stream.Context(), first.GetOpen())
	if err != nil {
		return err
	}
	a.stream = stream
	return a.run()
}

// newAttachment finds the exec that the client names, or creates one.
func (s *execCalls) newAttachment(ctx context.Context, open *agboxv1.AttachOpen) (*attachment, error) {
	if err := checkOpen(open); err != nil {
		return nil, err
	}
	a := &attachment{s: s, open: open, acked: true, news: make(chan struct{}, 1)}
	if open.GetCreate() == nil {
		var err error
		a.execID = open.GetExecId()
		a.sandboxID, err = s.ledger.FindExec(ctx, a.execID)
		return a, err
	}
	resolved, started, err := s.createExec(ctx, open.GetCreate())
	if err != nil {
		return nil, err
	}
	a.sandboxID, a.execID, a.created = resolved.GetSandboxId(), resolved.GetExecId(), s.created(resolved)
	select {
	case <-started: // only now does it take input, signals and sizes
		return a, nil
	case <-s.life.stopping:
		return nil, errStopping()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func checkOpen(open *agboxv1.AttachOpen) error {
	switch {
	case open == nil:
		return invalid("The first message of the call must be open: it says what to attach to.")
	case (open.GetExecId() == "") == (open.GetCreate() == nil):
		return invalid("Give either exec_id or create.")
	case open.TailLines != nil && open.GetCursor() != nil:
		return invalid("Give either cursor or tail_lines: both say where to start.")
	case open.GetInput() != agboxv1.InputMode_INPUT_MODE_NONE && open.GetWriter() == "":
		return invalid("A client that wants to type needs a writer: a random name that it keeps while it attaches again.")
	}
	return nil
}

// attachment is one call of AttachExec.
type attachment struct {
	s                 *execCalls
	stream            grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]
	open              *agboxv1.AttachOpen
	sandboxID, execID string
	created           *agboxv1.CreateExecResponse
	tty               bool
	// seat is the client's place among those that want to type; nil if it does not.
	seat *seat
	// shut is true if the client wants to type but found the input closed.
	shut bool

	// sending is for Send.
	// Held across I/O: a stream takes one message at a time, and three goroutines send.
	sending sync.Mutex
	// over is true once the last message was sent. sending guards it.
	over bool

	// mu guards the fields below.
	mu sync.Mutex
	// count is how many bytes of this writer the process was given.
	count uint64
	// closed is true when the input is closed, eof when the process got the writer's end.
	closed, eof bool
	// refused is true when input was refused since the right was last given: input that
	// the client has sent meanwhile then begins behind a gap.
	refused bool
	// acked is true when the client knows count, closed and eof.
	acked bool
	// granted and typist are what the client was last told about the right to type;
	// repeat requests the same message again.
	granted bool
	typist  string
	repeat  bool
	// news has a value when one of the fields above may have to be sent.
	news chan struct{}
}

// run serves the call until the exec ends or the client goes away.
func (a *attachment) run() error {
	ctx, fail := context.WithCancelCause(a.stream.Context())
	defer fail(nil)
	at, err := a.start(ctx)
	if a.seat != nil {
		defer a.s.typing.leave(a.seat)
	}
	if err != nil {
		return err
	}
	// Receive, and a send to a client that reads nothing, end only with the stream. The
	// stream ends with this handler, so Server.Stop waits for both goroutines.
	a.s.life.receivers.Go(func() { a.receive(ctx, fail) })
	a.s.life.receivers.Go(func() { a.note(ctx, fail) })
	defer fail(nil) // before the seat is left, which the client need not be told

	f := a.s.newFollower(a, a.sandboxID, a.execID, at)
	defer f.close()
	err = f.run(ctx, true)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// start finds where the client reads from, gives it a seat, and sends both.
func (a *attachment) start(ctx context.Context) (logs.Cursor, error) {
	status, err := a.s.execStatus(ctx, a.sandboxID, a.execID)
	if err != nil {
		return logs.Cursor{}, err
	}
	a.tty = status.GetTty()
	at, err := a.origin(ctx)
	if err != nil {
		return at, err
	}
	if err := a.sit(ctx, status); err != nil {
		return at, err
	}
	granted, typist := a.right()
	a.granted, a.typist = granted, typist
	return at, a.send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: &agboxv1.Attached{
		Exec:        status,
		Input:       granted,
		InputOffset: a.count,
		Cursor:      &agboxv1.LogCursor{StdoutOffset: at.Stdout, StderrOffset: at.Stderr},
		Created:     a.created,
		Typist:      typist,
		InputClosed: a.shut,
	}}})
}

// origin returns the cursor in the output from which the client wants to read.
func (a *attachment) origin(ctx context.Context) (logs.Cursor, error) {
	if a.open.TailLines == nil {
		return logs.Cursor{Stdout: a.open.GetCursor().GetStdoutOffset(), Stderr: a.open.GetCursor().GetStderrOffset()}, nil
	}
	dir, err := logs.OpenDir(a.s.paths.SandboxLogs(a.sandboxID))
	if err != nil {
		return logs.Cursor{}, unreadable(a.execID, err)
	}
	defer dir.Close()
	reader, err := dir.Open(a.execID, logs.Cursor{})
	if errdefs.IsNotFound(err) {
		return logs.Cursor{}, nil // nothing was written, or following reports what is wrong
	}
	if err != nil {
		return logs.Cursor{}, unreadable(a.execID, err)
	}
	defer reader.Close()
	if err := reader.Select(ctx, logs.Part{Tail: true, Lines: a.open.GetTailLines()}); err != nil {
		return logs.Cursor{}, unreadable(a.execID, err)
	}
	return reader.Cursor(), nil
}

func (a *attachment) send(m *agboxv1.AttachExecResponse) error {
	a.sending.Lock()
	defer a.sending.Unlock()
	if a.over {
		return nil
	}
	a.over = m.GetEnd() != nil
	return a.stream.Send(m)
}

func (a *attachment) sendChunk(chunk *agboxv1.LogChunk) error {
	return a.send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Chunk{Chunk: chunk}})
}

// sendEnd sends the last message. Later messages are dropped.
func (a *attachment) sendEnd(end *agboxv1.LogEnd) error {
	return a.send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_End{End: end}})
}
