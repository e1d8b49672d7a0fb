package server

import (
	"context"
	"errors"
	"io"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
