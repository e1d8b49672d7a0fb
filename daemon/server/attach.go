package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// AttachExec connects a client with an exec: the handler follows the log, and a second
// goroutine receives what the client sends. It receives the next message
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

// sit gives the client a seat if it wants to type and the exec takes input. The count of a
// closed input is not certain, so such a client must not compare it with its own.
func (a *attachment) sit(ctx context.Context, status *agboxv1.ExecStatus) error {
	if a.open.GetInput() == agboxv1.InputMode_INPUT_MODE_NONE {
		return nil
	}
	if !status.GetTty() && !status.GetStdin() || status.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
		a.comeLate()
		return nil
	}
	count, open, err := a.write(ctx, 0, nil, false)
	switch {
	case err != nil:
		return err
	case !open:
		a.comeLate()
		return nil
	}
	a.count = count
	a.seat = a.s.typing.enter(a.execID, a.open.GetWriter(), a.open.GetInput(), a.open.GetTyped())
	return nil
}

// comeLate refuses a seat because the input is closed. Clients of earlier versions learn
// this from the acknowledgement that follows.
func (a *attachment) comeLate() {
	a.shut, a.closed = true, true
	a.changedInput()
}

// write sends a piece of input to the supervisor. It returns how many bytes of this writer
// the process was given, and whether its input is open.
func (a *attachment) write(ctx context.Context, offset uint64, data []byte, eof bool) (uint64, bool, error) {
	return a.s.execs.WriteStdin(ctx, a.sandboxID, a.execID, a.open.GetWriter(), offset, data, eof)
}

// right reports whether the client may type now, and which writer may.
func (a *attachment) right() (granted bool, typist string) {
	switch {
	case a.shut:
		return false, ""
	case a.seat == nil:
		return false, a.s.typing.typist(a.execID)
	}
	return a.s.typing.may(a.seat)
}

// receive handles the client's messages one by one.
func (a *attachment) receive(ctx context.Context, fail context.CancelCauseFunc) {
	for {
		m, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			// From now on the client only reads. Its input was forwarded.
			if a.seat != nil {
				a.s.typing.leave(a.seat)
			}
			return
		}
		if err == nil {
			err = a.take(ctx, m)
		}
		if err != nil {
			fail(err)
			return
		}
	}
}

func (a *attachment) take(ctx context.Context, m *agboxv1.AttachExecRequest) error {
	switch item := m.GetItem().(type) {
	case *agboxv1.AttachExecRequest_Input:
		return a.input(ctx, item.Input)
	case *agboxv1.AttachExecRequest_Resize:
		return a.resize(ctx, item.Resize)
	case *agboxv1.AttachExecRequest_Signal:
		return a.signal(ctx, item.Signal)
	case *agboxv1.AttachExecRequest_Open:
		return invalid("This call is attached already: open is its first message only.")
	}
	return nil // from a later version
}

// input forwards a piece of input to the process. Without the right to type it drops the
// piece and tells the client; the client's count stays the same.
func (a *attachment) input(ctx context.Context, in *agboxv1.InputChunk) error {
	granted, _ := a.right()
	a.mu.Lock()
	count, closed := a.count, a.closed
	switch {
	case closed:
		a.mu.Unlock()
		return nil // the client knows
	case !granted:
		a.refused = true
	case in.GetOffset() <= count:
		a.refused = false
	case !a.refused:
		a.mu.Unlock()
		return invalid("This input begins at byte %d, but only %d bytes have come: send what lies between first.", in.GetOffset(), count)
	}
	refused := a.refused
	a.mu.Unlock()
	if refused {
		a.refuse()
		return nil
	}
	written, open, err := a.write(ctx, in.GetOffset(), in.GetData(), in.GetEof())
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.count, a.closed = max(written, a.count), !open
	a.eof = a.eof || in.GetEof() && written >= in.GetOffset()+uint64(len(in.GetData()))
	a.mu.Unlock()
	a.changedInput()
	return nil
}

// changedInput requests a message about how much of the client's input has arrived.
func (a *attachment) changedInput() {
	a.mu.Lock()
	a.acked = false
	a.mu.Unlock()
	a.wake()
}

// refuse requests messages that the client may not type, and from which byte on to send
// once it may.
func (a *attachment) refuse() {
	a.mu.Lock()
	a.acked, a.repeat = false, true
	a.mu.Unlock()
	a.wake()
}

func (a *attachment) wake() {
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// note tells the client about its input and its right to type. It has its own goroutine, so
// that taking the right away never waits for a client that does not read. Several changes
// are sent as one message.
func (a *attachment) note(ctx context.Context, fail context.CancelCauseFunc) {
	var changed chan struct{}
	if a.seat != nil {
		changed = a.seat.changed
	}
	for {
		select {
		case <-a.news:
		case <-changed:
		case <-ctx.Done():
			return
		}
		due := a.notes()
		if ctx.Err() != nil {
			return
		}
		for _, m := range due {
			if err := a.send(m); err != nil {
				fail(err)
				return
			}
		}
	}
}

// notes returns the messages that are due.
func (a *attachment) notes() []*agboxv1.AttachExecResponse {
	granted, typist := a.right()
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []*agboxv1.AttachExecResponse
	if !a.acked {
		a.acked = true
		due = append(due, &agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Ack{
			Ack: &agboxv1.InputAck{Offset: a.count, Closed: a.closed, Eof: a.eof}}})
	}
	if a.granted != granted || a.typist != typist || a.repeat {
		a.granted, a.typist, a.repeat = granted, typist, false
		due = append(due, &agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Input{
			Input: &agboxv1.InputChanged{Granted: granted, Typist: typist}}})
	}
	return due
}

// resize forwards the size of the client's terminal if the client may type. Of several
// clients that share the input, the last size counts.
func (a *attachment) resize(ctx context.Context, size *agboxv1.TerminalSize) error {
	if granted, _ := a.right(); !granted || !a.tty {
		return nil
	}
	err := a.s.execs.Resize(ctx, a.sandboxID, a.execID, size.GetRows(), size.GetColumns())
	if errdefs.IsUnavailable(err) || errdefs.IsFailedPrecondition(err) {
		// An exec that ended has no terminal. A size that no supervisor took is no reason to
		// end the session: the client sends the next one, or this one when it attaches again.
		return nil
	}
	return err
}

func (a *attachment) signal(ctx context.Context, signal int32) error {
	if signal < 1 || signal > 64 {
		return invalid("There is no signal %d: they are 1 to 64.", signal)
	}
	err := a.s.execs.Signal(ctx, a.sandboxID, a.execID, signal)
	if errdefs.IsFailedPrecondition(err) {
		return nil // it ended before the signal arrived
	}
	return err
}
