package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// beginWithin is how long a supervisor may take to open what a transfer is about.
const beginWithin = 30 * time.Second

// Transfer is a file or tree under way, on a connection of its own. Its methods
// must not be called at the same time. All lengths that arrive are bounded.
type Transfer struct {
	conn net.Conn
	pipe *wire.Pipe
	// stop ends what closes conn with ctx.
	stop func()
	ctx  context.Context
	buf  []byte
	// end carries the supervisor's last word on what it is sent.
	end chan ended
	// File is what is read, of a read.
	File *guestv1.FileStat
}

type ended struct {
	word *guestv1.TransferEnd
	err  error
}

// DialTransfer begins a transfer with the supervisor that listens in linkDir. It
// lives until Close, or until ctx ends; what is not finished then is removed. Its
// errors are those of Conn.File.
func DialTransfer(ctx context.Context, linkDir string, req *guestv1.TransferRequest) (*Transfer, error) {
	conn, err := connect(ctx, linkDir)
	if err != nil {
		return nil, err
	}
	t := &Transfer{conn: conn, pipe: wire.NewPipe(conn, bytes.NewReader(nil)), ctx: ctx}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(closed); _ = conn.Close() })
	t.stop = sync.OnceFunc(func() {
		if !stop() {
			<-closed
		}
	})
	first := new(guestv1.TransferResponse)
	if err := t.greet(req, first); err != nil {
		t.Close()
		return nil, t.explain(err)
	}
	if first.GetError() != nil {
		t.Close()
		return nil, fileError(first.GetError())
	}
	t.File = first.GetFile()
	if req.GetWrite() != nil || req.GetIn() != nil {
		t.listen()
	}
	return t, nil
}

func (t *Transfer) greet(req *guestv1.TransferRequest, first *guestv1.TransferResponse) error {
	if err := t.conn.SetDeadline(time.Now().Add(beginWithin)); err != nil {
		return err
	}
	if err := t.pipe.SendWord(wire.Preamble, req); err != nil {
		return err
	}
	if err := t.pipe.Word(first); err != nil {
		return err
	}
	return t.conn.SetDeadline(time.Time{}) // from here on a reader may be slow
}

// listen waits for the last word, which comes early when the supervisor can take no
// more.
func (t *Transfer) listen() {
	t.end = make(chan ended, 1)
	go func() { // ends with the connection, and Close waits for it
		defer close(t.end)
		word := new(guestv1.TransferEnd)
		err := t.pipe.Word(word)
		t.end <- ended{word, err}
	}()
}

// Close ends the transfer. What was not finished then replaces nothing any more:
// the supervisor can tell that the connection is closed.
func (t *Transfer) Close() {
	t.stop()
	_ = t.conn.Close()
	if t.end != nil {
		for range t.end { // the goroutine of listen closes it
		}
	}
}

// Next returns the next bytes that the supervisor sends, which are good until the
// next call, or io.EOF when all have come.
func (t *Transfer) Next() ([]byte, error) {
	if t.buf == nil {
		t.buf = make([]byte, wire.MaxChunk)
	}
	chunk, err := t.pipe.Next(t.buf)
	if !errors.Is(err, io.EOF) {
		return chunk, t.explain(err)
	}
	word := new(guestv1.TransferEnd)
	switch err := t.pipe.Word(word); {
	case err != nil:
		return nil, t.explain(err)
	case word.GetError() != nil:
		return nil, fileError(word.GetError())
	}
	return nil, io.EOF
}

// NextChanges returns the next changes of a watch, or io.EOF.
func (t *Transfer) NextChanges() (*guestv1.WatchBatch, error) {
	raw, err := t.Next()
	if err != nil {
		return nil, err
	}
	batch := new(guestv1.WatchBatch)
	if err := proto.Unmarshal(raw, batch); err != nil {
		return nil, tampered("it sent changes that cannot be read", err)
	}
	return batch, nil
}

// Push sends bytes. It returns when they are on their way, which takes as long as
// those before are being written.
func (t *Transfer) Push(data []byte) error {
	if _, err := t.pipe.Write(data); err != nil {
		_, err = t.last(err)
		return err
	}
	return nil
}

// Finish says that all bytes were sent, and returns when everything is done.
func (t *Transfer) Finish() (*guestv1.TransferEnd, error) { return t.last(t.pipe.End()) }

// last waits for the last word. If sending has failed it says why.
func (t *Transfer) last(sent error) (*guestv1.TransferEnd, error) {
	end := <-t.end
	switch {
	case end.err != nil:
		return nil, t.explain(end.err)
	case end.word.GetError() != nil:
		return nil, fileError(end.word.GetError())
	case sent != nil:
		return nil, t.explain(sent)
	}
	return end.word, nil
}

func (t *Transfer) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case t.ctx.Err() != nil:
		return t.ctx.Err()
	case errors.Is(err, wire.ErrFrame):
		return tampered("it broke the protocol", err)
	}
	return unreachable("the connection of the transfer was lost", err)
}
