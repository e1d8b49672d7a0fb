package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// beginWithin is how long a supervisor may take to open the file or tree of a transfer.
const beginWithin = 30 * time.Second

// Transfer is the transfer of a file, tree or watch on a separate connection. Its
// methods must not be called concurrently. All received lengths are bounded.
type Transfer struct {
	conn net.Conn
	pipe *rpc.Pipe
	// stop unregisters the function that closes conn when ctx is done.
	stop func()
	ctx  context.Context
	buf  []byte
	// end receives the supervisor's final message about data sent to it.
	end chan ended
	// File describes the file of a read.
	File *guestv1.FileStat
}

type ended struct {
	word *guestv1.TransferEnd
	err  error
}

// DialTransfer begins a transfer with the supervisor that listens in linkDir. The
// transfer lasts until Close, or until ctx is done; the supervisor then removes
// unfinished work. Its errors are those of check and of Conn.File.
func DialTransfer(ctx context.Context, linkDir string, check Check, req *guestv1.TransferRequest) (*Transfer, error) {
	conn, err := connect(ctx, linkDir, check)
	if err != nil {
		return nil, err
	}
	t := &Transfer{conn: conn, pipe: rpc.NewPipe(conn, bytes.NewReader(nil)), ctx: ctx}
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
	raw, err := req.MarshalVT()
	if err != nil {
		return err
	}
	if err := t.pipe.SendWord(rpc.Preamble, raw); err != nil {
		return err
	}
	if err := t.word(first); err != nil {
		return err
	}
	return t.conn.SetDeadline(time.Time{}) // the transfer itself may take any time
}

// word receives a message.
func (t *Transfer) word(m rpc.Decodable) error {
	raw, err := t.pipe.Word()
	if err != nil {
		return err
	}
	if err := m.UnmarshalVT(raw); err != nil {
		return fmt.Errorf("%w: %w", rpc.ErrFrame, err)
	}
	return nil
}

// listen receives the supervisor's final message in the background. It arrives early
// if the supervisor cannot accept more data.
func (t *Transfer) listen() {
	t.end = make(chan ended, 1)
	go func() { // ends when the connection is closed; Close waits for it
		defer close(t.end)
		word := new(guestv1.TransferEnd)
		err := t.word(word)
		t.end <- ended{word, err}
	}()
}

// Close ends the transfer. An unfinished transfer does not replace anything after
// that, because the supervisor checks that the connection is open.
func (t *Transfer) Close() {
	t.stop()
	_ = t.conn.Close()
	if t.end != nil {
		for range t.end { // the goroutine of listen closes t.end
		}
	}
}

// Next returns the next bytes from the supervisor, which are valid until the next
// call, or io.EOF at the end.
func (t *Transfer) Next() ([]byte, error) {
	if t.buf == nil {
		t.buf = make([]byte, rpc.MaxChunk)
	}
	chunk, err := t.pipe.Next(t.buf)
	if !errors.Is(err, io.EOF) {
		return chunk, t.explain(err)
	}
	word := new(guestv1.TransferEnd)
	switch err := t.word(word); {
	case err != nil:
		return nil, t.explain(err)
	case word.GetError() != nil:
		return nil, fileError(word.GetError())
	}
	return nil, io.EOF
}

// NextChanges returns the next changes of a watch, or io.EOF at its end.
func (t *Transfer) NextChanges() (*guestv1.WatchBatch, error) {
	raw, err := t.Next()
	if err != nil {
		return nil, err
	}
	batch := new(guestv1.WatchBatch)
	if err := batch.UnmarshalVT(raw); err != nil {
		return nil, Tampered("it sent changes that cannot be decoded", err)
	}
	return batch, nil
}

// Push sends bytes. It returns when the socket has accepted them, so it blocks while
// the supervisor is still writing earlier ones.
func (t *Transfer) Push(data []byte) error {
	if _, err := t.pipe.Write(data); err != nil {
		_, err = t.last(err)
		return err
	}
	return nil
}

// Finish tells the supervisor that all bytes were sent, and waits until it has
// finished.
func (t *Transfer) Finish() (*guestv1.TransferEnd, error) { return t.last(t.pipe.End()) }

// last waits for the supervisor's final message, which explains a failed send better
// than the send's own error.
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
	case errors.Is(err, rpc.ErrFrame):
		return Tampered("it broke the protocol", err)
	}
	return unreachable("the connection of the transfer was lost", err)
}

// FileOp is a file operation that fits into one small call over the link: a method of Files.
type FileOp string

// The file operations.
const (
	StatFile      FileOp = "Stat"
	ListFiles     FileOp = "List"
	MakeDirectory FileOp = "MakeDirectory"
	RemoveFile    FileOp = "Remove"
	MoveFile      FileOp = "Move"
)

// File performs a file operation in the sandbox. Besides the errors of Conn it
// returns those of the container's file system, each with a published reason.
func (c *Conn) File(ctx context.Context, op FileOp, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	reply, err := call[guestv1.FileReply](ctx, c, "Files/"+string(op), req)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	if reply.GetError() != nil {
		return nil, fileError(reply.GetError())
	}
	if op == StatFile && len(reply.GetFiles()) != 1 {
		return nil, c.violation("it did not describe exactly one file")
	}
	return reply, nil
}

// RemoveTree calls RemoveFile on a separate connection. The protocol cannot cancel a call,
// so only closing its connection stops the supervisor. Without that, the removal
// would also remove files created after ctx was cancelled.
func RemoveTree(ctx context.Context, linkDir string, check Check, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	c, err := Dial(ctx, linkDir, check)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.File(ctx, RemoveFile, req)
}

type fileClass struct {
	class  error
	reason agboxv1.ErrorReason
}

var fileClasses = map[guestv1.FileFailure]fileClass{
	guestv1.FileFailure_FILE_FAILURE_NOT_FOUND:      {errdefs.ErrNotFound, agboxv1.ErrorReason_FILE_NOT_FOUND},
	guestv1.FileFailure_FILE_FAILURE_EXISTS:         {errdefs.ErrAlreadyExists, agboxv1.ErrorReason_FILE_EXISTS},
	guestv1.FileFailure_FILE_FAILURE_NOT_DIRECTORY:  {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_NOT_A_DIRECTORY},
	guestv1.FileFailure_FILE_FAILURE_IS_DIRECTORY:   {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IS_A_DIRECTORY},
	guestv1.FileFailure_FILE_FAILURE_NOT_EMPTY:      {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_DIRECTORY_NOT_EMPTY},
	guestv1.FileFailure_FILE_FAILURE_PERMISSION:     {errdefs.ErrPermissionDenied, agboxv1.ErrorReason_FILE_PERMISSION},
	guestv1.FileFailure_FILE_FAILURE_NOT_REGULAR:    {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_FILE_NOT_REGULAR},
	guestv1.FileFailure_FILE_FAILURE_FULL:           {errdefs.ErrResourceExhausted, agboxv1.ErrorReason_FILE_SYSTEM_FULL},
	guestv1.FileFailure_FILE_FAILURE_REFUSED:        {errdefs.ErrInvalidArgument, agboxv1.ErrorReason_ARCHIVE_REFUSED},
	guestv1.FileFailure_FILE_FAILURE_USER_NOT_FOUND: {errdefs.ErrInvalidArgument, agboxv1.ErrorReason_USER_NOT_FOUND},
	guestv1.FileFailure_FILE_FAILURE_BUSY:           {errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED},
	guestv1.FileFailure_FILE_FAILURE_CHANGED:        {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_FILE_CHANGED},
	guestv1.FileFailure_FILE_FAILURE_INVALID:        {errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST},
}

// fileError turns the supervisor's error about a file into a fault. The message is
// untrusted, so it is bounded and made valid UTF-8.
func fileError(e *guestv1.FileError) error {
	to, ok := fileClasses[e.GetKind()]
	if !ok {
		to = fileClass{errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_FILE_FAILED}
	}
	const longest = 2048
	text := e.GetMessage()
	return fault.New(to.class, to.reason, "%s", strings.ToValidUTF8(text[:min(len(text), longest)], "\uFFFD"))
}
