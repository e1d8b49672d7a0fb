package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"
	"syscall"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// AttachOptions are the options of AttachExec.
type AttachOptions struct {
	// Exec is the exec to attach to. Create must be nil.
	Exec string
	// Create is a command to run first. It should have Stdin or Tty set.
	Create *agboxv1.CreateExecRequest
	// Cursor is where to start in the output. The zero value is the beginning.
	Cursor Cursor
	// TailLines, if not nil, starts with this many last lines instead.
	TailLines *uint64
	// Input says whether this client wants to type, and whether with or instead of
	// others.
	Input agboxv1.InputMode
	// Writer is a name for this client that watching clients see: letters, digits, '-'
	// and '_', at most 48. A random part is appended.
	Writer string
	// OnInput, if not nil, is called when this client gets or loses the right to type,
	// and when another client gets it. typist is the writer who has it. It must not
	// block.
	OnInput func(granted bool, typist string)
}

// Session is a client's connection to an exec: output comes from Items, input goes to
// Write. It survives restarts of the daemon: it reconnects within the client's bound,
// continues the output at the byte where it stopped, and sends input again that had not
// arrived. No byte is lost or duplicated.
//
// The caller must read Items, or the session stalls. The other methods are safe for
// concurrent use; if the order of the input matters, write it from one goroutine.
type Session struct {
	client *Client
	opt    AttachOptions
	writer string
	ctx    context.Context
	cancel context.CancelCauseFunc
	run    sync.WaitGroup
	items  chan LogItem

	// first is the daemon's first message.
	first *agboxv1.Attached
	input input

	// done is closed when the session has ended and err is set.
	done chan struct{}
	err  error
}

// AttachExec attaches to an exec and returns once the daemon has confirmed it. The
// session must be ended with Detach. The end of its context also ends it. Neither ends
// the command.
func (c *Client) AttachExec(ctx context.Context, o AttachOptions) (*Session, error) {
	if o.Create != nil {
		o.Create = repeatableExec(o.Create)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Session{
		client: c, opt: o, ctx: ctx, cancel: cancel,
		items: make(chan LogItem), done: make(chan struct{}),
	}
	s.writer = ids.New()
	if o.Writer != "" {
		s.writer = o.Writer + "-" + s.writer
	}
	s.input.init()
	ready := make(chan struct{})
	s.run.Go(func() {
		defer close(s.done)
		s.err = s.attach(ready)
		s.input.finish(s.err)
	})
	select {
	case <-ready:
		return s, nil
	case <-s.done:
		s.Detach()
		return nil, s.err
	}
}

// ExecID returns the id of the exec.
func (s *Session) ExecID() string { return s.first.GetExec().GetExecId() }

// Attached returns the daemon's first message: the exec, where its output starts, and
// whether this client may type.
func (s *Session) Attached() *agboxv1.Attached { return s.first }

// Items yields the output in order. The last item has the end of the exec, or an error.
// It can be used once.
func (s *Session) Items() iter.Seq2[LogItem, error] {
	return func(yield func(LogItem, error) bool) {
		for {
			select {
			case item := <-s.items:
				if !yield(item, nil) || item.End != nil {
					return
				}
			case <-s.done:
				if s.err != nil {
					yield(LogItem{}, s.err)
				}
				return
			}
		}
	}
}

// Write sends p as input. It returns when all of p is buffered for sending. It blocks
// while the command does not read or this client may not type. Its error is
// ErrInputClosed, ErrDetached, or the error that ended the session.
func (s *Session) Write(p []byte) (int, error) { return s.input.write(s.ctx, p, true) }

// Type is like Write, but without the right to type it buffers nothing and returns
// ErrNotTypist.
func (s *Session) Type(p []byte) (int, error) { return s.input.write(s.ctx, p, false) }

// CloseWrite closes the standard input of the command after the input written so far. On
// a terminal it types the end-of-file character. It does not block.
func (s *Session) CloseWrite() error { return s.input.closeWrite() }

// Flush waits until the command has received all input written so far.
func (s *Session) Flush(ctx context.Context) error { return s.input.flush(ctx) }

// MayType reports whether input is sent now.
func (s *Session) MayType() bool { return s.input.mayType() }

// Resize sets the size of this client's terminal. It has an effect whenever the client
// may type.
func (s *Session) Resize(rows, columns int) { s.input.resize(rows, columns) }

// Signal sends one signal to the process group of the command, at most once.
func (s *Session) Signal(ctx context.Context, sig syscall.Signal) error {
	return s.client.SignalExec(ctx, s.ExecID(), sig)
}

// Input returns how far the input has come, also after the end of the session.
func (s *Session) Input() InputState { return s.input.state() }

// Detach ends the session. The command continues. Input that was not sent yet is lost;
// see Flush and Input.
func (s *Session) Detach() {
	s.cancel(ErrDetached)
	s.run.Wait()
}

// attach keeps the session connected until it ends. ready is closed after the daemon's
// first answer.
func (s *Session) attach(ready chan<- struct{}) error {
	wait := s.client.newFollower()
	at := logPlace{Cursor: s.opt.Cursor}
	for {
		if err := s.client.Connect(s.ctx); err != nil {
			return s.ended(err)
		}
		l := &attachLink{s: s, at: &at, ready: ready, wait: wait}
		over, err := l.serve()
		if over {
			return nil
		}
		if l.attached {
			ready = nil
			wait.reset()
		}
		e := s.client.decode(s.ctx, err)
		if l.got && e.Reason == agboxv1.ErrorReason_OVERLOADED.String() {
			// The daemon drops a slow reader. The cursor is still valid.
			continue
		}
		if err := wait.again(s.ctx, e); err != nil {
			return s.ended(err)
		}
	}
}

// ended returns ErrDetached for a session that Detach has ended.
func (s *Session) ended(err error) error {
	if errors.Is(context.Cause(s.ctx), ErrDetached) {
		return ErrDetached
	}
	return err
}

// attachLink is one connection of a session.
type attachLink struct {
	s        *Session
	at       *logPlace
	ready    chan<- struct{}
	wait     *patience
	attached bool
	// got means that this connection delivered output.
	got bool
}

// serve attaches and passes output on until the connection is lost or the session has
// ended.
func (l *attachLink) serve() (over bool, err error) {
	ctx, cancel := context.WithCancel(l.s.ctx)
	defer cancel()
	stream, err := l.s.client.sandboxes.AttachExec(ctx)
	if err != nil {
		return false, err
	}
	if err := stream.Send(&agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Open{Open: l.open()}}); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return false, &Error{Code: codes.Unavailable, Message: "agboxd ended the stream too early.", cause: ErrDaemonUnreachable, lost: true}
		case err != nil:
			return false, err
		}
		if m.GetAttached() != nil {
			if err := l.begin(m.GetAttached()); err != nil {
				return false, err
			}
			sending.Go(func() { l.s.input.send(ctx, stream) })
			continue
		}
		if over, err := l.take(m); over || err != nil {
			return over, err
		}
	}
}

// open returns the first message: the client's state when the last connection broke.
func (l *attachLink) open() *agboxv1.AttachOpen {
	o := &agboxv1.AttachOpen{Input: l.s.opt.Input, Writer: l.s.writer}
	switch {
	case l.s.first != nil:
		o.ExecId = l.s.ExecID()
		o.Typed = l.s.input.mayType()
		if o.Input == agboxv1.InputMode_INPUT_MODE_TAKE_OVER {
			o.Input = agboxv1.InputMode_INPUT_MODE_IF_FREE // another client may have taken over meanwhile
		}
	case l.s.opt.Create != nil:
		o.Create = l.s.opt.Create
	default:
		o.ExecId = l.s.opt.Exec
	}
	if l.s.first == nil && l.s.opt.TailLines != nil {
		o.TailLines = l.s.opt.TailLines
	} else {
		from := l.at.resume()
		o.Cursor = &agboxv1.LogCursor{StdoutOffset: from.Stdout, StderrOffset: from.Stderr}
	}
	return o
}

func (l *attachLink) begin(m *agboxv1.Attached) error {
	l.attached = true
	l.s.client.answered.Store(true)
	if err := l.s.input.attached(m); err != nil {
		return err
	}
	l.wait.reached()
	if l.ready != nil {
		l.s.first = m
		l.at.Cursor = Cursor{Stdout: m.GetCursor().GetStdoutOffset(), Stderr: m.GetCursor().GetStderrOffset()}
		close(l.ready)
		l.ready = nil
	} else if !m.GetInputClosed() { // otherwise the session ends, and nobody types
		l.tell(m.GetInput(), m.GetTypist())
	}
	return nil
}

func (l *attachLink) tell(granted bool, typist string) {
	if l.s.opt.OnInput != nil {
		l.s.opt.OnInput(granted, typist)
	}
}

// take handles one message after the first one.
func (l *attachLink) take(m *agboxv1.AttachExecResponse) (over bool, err error) {
	switch item := m.GetItem().(type) {
	case *agboxv1.AttachExecResponse_Ack:
		return false, l.s.input.ack(item.Ack)
	case *agboxv1.AttachExecResponse_Input:
		l.s.input.changed(item.Input.GetGranted())
		l.tell(item.Input.GetGranted(), item.Input.GetTypist())
	case *agboxv1.AttachExecResponse_Chunk:
		out, err := l.at.take(item.Chunk)
		if err != nil || out.empty() {
			return false, err
		}
		l.got = true
		return false, l.give(out)
	case *agboxv1.AttachExecResponse_End:
		return true, l.give(LogItem{Cursor: l.at.Cursor, End: item.End})
	}
	return false, nil
}

func (l *attachLink) give(item LogItem) error {
	select {
	case l.s.items <- item:
		return nil
	case <-l.s.ctx.Done():
		return l.s.ctx.Err()
	}
}
