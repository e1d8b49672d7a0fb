package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// inputBuffer bounds the input that is sent or to be sent and not acknowledged, in
	// bytes.
	inputBuffer = 1 << 20
	// inputPiece is the maximum input of one message, in bytes.
	inputPiece = 256 << 10
)

var (
	// ErrDetached is the error of a session that Detach has ended.
	ErrDetached = errors.New("detached")
	// ErrNotTypist means that another client has the right to type.
	ErrNotTypist = errors.New("another client types")
	// ErrInputClosed means that the command no longer reads its input.
	ErrInputClosed = errors.New("the command no longer reads its input")
)

// input is the input of a session: bytes that are kept until they are acknowledged.
type input struct {
	// mu guards the fields below.
	mu sync.Mutex
	// changedC is closed and replaced at every change of the fields below.
	changedC chan struct{}
	// kept has the bytes from acked on, which are not acknowledged.
	kept  []byte
	acked uint64
	// sent is the offset up to which bytes were sent on this connection, sentEver on any.
	sent, sentEver uint64
	// written counts all bytes that were accepted.
	written uint64
	// ends is set by CloseWrite. endSent and endAcked say whether the end was sent and
	// acknowledged.
	ends, endSent, endAcked bool
	granted                 bool
	// size is the newest size of the terminal. sizeSent means that it was sent.
	size     *agboxv1.TerminalSize
	sizeSent bool
	// closed is true once the command accepts no more input.
	closed bool
	// over is the reason why the session accepts no more input.
	over error
}

// InputState counts the input of a session in bytes from its beginning.
type InputState struct {
	// Written is how many bytes Write and Type have accepted.
	Written uint64
	// Sent is up to where they were sent to a daemon, at least once.
	Sent uint64
	// Acknowledged is up to where the command is known to have received them. Of those
	// between it and Sent that is unknown. Those after Sent have not arrived.
	Acknowledged uint64
}

func (in *input) state() InputState {
	in.mu.Lock()
	defer in.mu.Unlock()
	return InputState{Written: in.written, Sent: max(in.sentEver, in.acked), Acknowledged: in.acked}
}

func (in *input) init() { in.changedC = make(chan struct{}) }

// changeLocked wakes all waiting goroutines.
func (in *input) changeLocked() {
	close(in.changedC)
	in.changedC = make(chan struct{})
}

// failureLocked returns why no input is accepted, or nil.
func (in *input) failureLocked() error {
	switch {
	case in.over != nil:
		return in.over
	case in.closed, in.ends:
		return ErrInputClosed
	}
	return nil
}

// write appends p to the buffer. Without the right to type it waits if patient is set,
// and otherwise returns ErrNotTypist.
func (in *input) write(ctx context.Context, p []byte, patient bool) (n int, err error) {
	for {
		in.mu.Lock()
		if err := in.failureLocked(); err != nil {
			in.mu.Unlock()
			return n, err
		}
		if !in.granted && !patient {
			in.mu.Unlock()
			return n, ErrNotTypist
		}
		if room := inputBuffer - len(in.kept); room > 0 && in.granted && len(p) > 0 {
			part := p[:min(room, len(p))]
			in.kept = append(in.kept, part...)
			in.written += uint64(len(part))
			n, p = n+len(part), p[len(part):]
			in.changeLocked()
		}
		changed := in.changedC
		in.mu.Unlock()
		if len(p) == 0 {
			return n, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return n, context.Cause(ctx)
		}
	}
}

func (in *input) closeWrite() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over != nil {
		return in.over
	}
	in.ends = true
	in.changeLocked()
	return nil
}

func (in *input) flush(ctx context.Context) error {
	for {
		in.mu.Lock()
		done := in.closed || len(in.kept) == 0 && (!in.ends || in.endAcked)
		err, changed := in.over, in.changedC
		in.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (in *input) mayType() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.granted
}

func (in *input) resize(rows, columns int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.size, in.sizeSent = &agboxv1.TerminalSize{Rows: uint32(rows), Columns: uint32(columns)}, false
	in.changeLocked()
}

// attached applies the daemon's count at the start of a connection.
func (in *input) attached(m *agboxv1.Attached) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.granted, in.sizeSent = m.GetInput(), false
	if m.GetInputClosed() {
		in.closed, in.kept = true, nil
	}
	// If the command no longer reads, the count does not matter and is not kept.
	if !m.GetInput() || in.closed {
		in.changeLocked()
		return nil
	}
	return in.arrivedLocked(m.GetInputOffset())
}

// arrivedLocked drops acknowledged bytes and marks the rest to be sent again.
func (in *input) arrivedLocked(count uint64) error {
	defer in.changeLocked()
	if count < in.acked || count > in.acked+uint64(len(in.kept)) {
		return lostInput(count, in.acked, in.acked+uint64(len(in.kept)))
	}
	in.dropLocked(count)
	in.sent, in.endSent = in.acked, in.endAcked
	return nil
}

// dropLocked moves the remaining bytes to the front, so the buffer does not grow.
func (in *input) dropLocked(count uint64) {
	in.kept = append(in.kept[:0], in.kept[count-in.acked:]...)
	in.acked = count
	in.sent = max(in.sent, count)
}

func (in *input) ack(m *agboxv1.InputAck) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	defer in.changeLocked()
	in.endAcked = in.endAcked || m.GetEof()
	if m.GetClosed() {
		in.acked = min(max(in.acked, m.GetOffset()), in.written)
		in.closed, in.kept = true, nil
		return nil
	}
	if m.GetOffset() > in.acked+uint64(len(in.kept)) {
		return lostInput(m.GetOffset(), in.acked, in.acked+uint64(len(in.kept)))
	}
	if m.GetOffset() > in.acked {
		in.dropLocked(m.GetOffset())
	}
	return nil
}

// changed records whether the client has the right to type. Input sent without it was
// discarded and is sent again.
func (in *input) changed(granted bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.granted = granted
	in.sent, in.endSent = in.acked, in.endAcked
	in.sizeSent = in.sizeSent && granted
	in.changeLocked()
}

// finish ends the input with the session.
func (in *input) finish(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err == nil {
		err = ErrInputClosed
	}
	in.over = err
	in.changeLocked()
}

// send sends input on one connection until ctx ends.
func (in *input) send(ctx context.Context, stream grpc.BidiStreamingClient[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) {
	var piece []byte // made with the first input: a watching client needs none
	for {
		m, changed := in.next(&piece)
		if m == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return
			}
		}
		// The receiving goroutine gets the error with its reason.
		if err := stream.Send(m); err != nil && (!errors.Is(err, io.EOF) || ctx.Err() != nil) {
			return
		} else if err != nil {
			<-ctx.Done()
			return
		}
	}
}

// next returns the next message, or nil if there is none until the channel is closed.
func (in *input) next(piece *[]byte) (*agboxv1.AttachExecRequest, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.granted || in.closed || in.over != nil {
		return nil, in.changedC
	}
	if in.size != nil && !in.sizeSent {
		in.sizeSent = true
		return &agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Resize{Resize: in.size}}, nil
	}
	rest := in.kept[in.sent-in.acked:]
	end := in.ends && !in.endSent && len(rest) <= inputPiece
	if len(rest) == 0 && !end {
		return nil, in.changedC
	}
	if *piece == nil {
		*piece = make([]byte, inputPiece)
	}
	n := copy(*piece, rest)
	chunk := &agboxv1.InputChunk{Offset: in.sent, Data: (*piece)[:n], Eof: end}
	in.sent += uint64(n)
	in.sentEver = max(in.sentEver, in.sent)
	in.endSent = in.endSent || end
	return &agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Input{Input: chunk}}, nil
}

// lostInput is the error if the daemon's count of the input does not match the client's.
func lostInput(theirs, from, to uint64) error {
	return &Error{Code: codes.DataLoss, Message: fmt.Sprintf(
		"agboxd has %d bytes of the input, but this program has only those from %d to %d, so the input cannot continue.", theirs, from, to)}
}
