package client

import (
	"context"
	"errors"
	"io"
	"sync"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
)

// input is what a session types: bytes that are kept until they are known to
// have arrived.
type input struct {
	// mu guards the fields below.
	mu sync.Mutex
	// changedC is closed, and made anew, with every change of what follows.
	changedC chan struct{}
	// kept are the bytes from acked on: all that have not arrived for certain.
	kept  []byte
	acked uint64
	// sent is up to where they were sent on this connection.
	sent uint64
	// ends is true after CloseWrite; endSent and endAcked tell how far that got.
	ends, endSent, endAcked bool
	granted                 bool
	// size is the newest size of the terminal; sizeSent tells that it was sent.
	size     *agboxv1.TerminalSize
	sizeSent bool
	// closed is true when the command takes no more.
	closed bool
	// over is why the session takes no more input.
	over error
}

func (in *input) init() { in.changedC = make(chan struct{}) }

// changeLocked wakes everybody who waits.
func (in *input) changeLocked() {
	close(in.changedC)
	in.changedC = make(chan struct{})
}

// failureLocked is why nothing can be typed any more; nil if it can.
func (in *input) failureLocked() error {
	switch {
	case in.over != nil:
		return in.over
	case in.closed, in.ends:
		return ErrInputClosed
	}
	return nil
}

// write takes p over. Without the right to type it waits for it, or gives
// ErrLookingOn.
func (in *input) write(ctx context.Context, p []byte, patient bool) (n int, err error) {
	for {
		in.mu.Lock()
		if err := in.failureLocked(); err != nil {
			in.mu.Unlock()
			return n, err
		}
		if !in.granted && !patient {
			in.mu.Unlock()
			return n, ErrLookingOn
		}
		if room := inputBuffer - len(in.kept); room > 0 && in.granted && len(p) > 0 {
			part := p[:min(room, len(p))]
			in.kept = append(in.kept, part...)
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

// attached takes the daemon's count at the start of a connection.
func (in *input) attached(m *agboxv1.Attached) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.granted, in.sizeSent = m.GetInput(), false
	if m.GetInputClosed() {
		in.closed, in.kept = true, nil
	}
	// What a command that reads no more was given does not matter, and is not kept.
	if !m.GetInput() || in.closed {
		in.changeLocked()
		return nil
	}
	return in.arrivedLocked(m.GetInputOffset())
}

// arrivedLocked gives up what has arrived, and has the rest sent again.
func (in *input) arrivedLocked(count uint64) error {
	defer in.changeLocked()
	if count < in.acked || count > in.acked+uint64(len(in.kept)) {
		return lostInput(count, in.acked, in.acked+uint64(len(in.kept)))
	}
	in.dropLocked(count)
	in.sent, in.endSent = in.acked, in.endAcked
	return nil
}

// dropLocked moves what is left to the front: the buffer never grows.
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

// changed takes the news of the right to type. What was sent without it was not
// taken and is sent again.
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

// send sends on one connection what there is to send, until ctx ends.
func (in *input) send(ctx context.Context, stream grpc.BidiStreamingClient[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) {
	var piece []byte // made with the first input: who looks on needs none
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
		// An error is seen by who receives, with its reason.
		if err := stream.Send(m); err != nil && (!errors.Is(err, io.EOF) || ctx.Err() != nil) {
			return
		} else if err != nil {
			<-ctx.Done()
			return
		}
	}
}

// next is the next message; nil if there is none until the channel is closed.
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
	in.endSent = in.endSent || end
	return &agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Input{Input: chunk}}, nil
}
