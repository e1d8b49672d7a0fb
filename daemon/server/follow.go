package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
)

const (
	// chunkSize is the most that one message of a log stream carries, in bytes: with
	// what is around it, 256 KiB.
	chunkSize = 256<<10 - 256
	// batchLength is how many chunks one message carries at most.
	batchLength = 256
	// slowReader is how long a client may take nothing while there is something
	// for it. A stream that is ended then costs no more than one message.
	slowReader = 10 * time.Second
	// restAfter is how long a follower of a quiet log keeps its files open.
	restAfter = time.Second
	// movedEvery is how many bytes of what a client does not want are passed over
	// until it is told.
	movedEvery = 16 << 20
)

// chunks lends buffers to followers while they have something to send: a
// follower of a quiet log holds none.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// follower is one log stream. The handler's goroutine owns it, but while deliver
// runs: then a goroutine does that reads and sends.
type follower struct {
	s                 *execCalls
	to                outputSender
	sandboxID, execID string
	// done is closed when the exec has ended.
	done <-chan struct{}
	// at is what the client knows of where the stream is.
	at logs.Cursor
	// batches tells that the client takes several chunks in one message; held are
	// those that are not sent yet.
	batches bool
	held    []*agboxv1.LogChunk
	// part is what to give, where selective says that it is not all.
	part      logs.Part
	selective bool

	reader *logs.Reader
	watch  *notify.Watch
	// sends is odd while a message is being sent, and counts them.
	sends atomic.Int64
	// left tells that a client took nothing, and the goroutine that tried to send
	// closes everything.
	left bool
}

func (f *follower) close() {
	if !f.left {
		f.release()
	}
}

func (f *follower) release() {
	if f.watch != nil {
		f.watch.Close()
	}
	if f.reader != nil {
		_ = f.reader.Close()
	}
}

// run sends what is there, waits for more if asked to, and closes with the
// status. What the process wrote before it ended is all sent before its status.
func (f *follower) run(ctx context.Context, follow bool) error {
	if err := f.subscribe(follow); err != nil {
		return err
	}
	for {
		// In this order: what is in the log once the end is known is complete.
		last := !follow || f.ended() || f.expired()
		if err := f.deliver(ctx, last); err != nil {
			return err
		}
		if last || f.reader != nil && f.reader.Over() {
			return f.finish(ctx)
		}
		if err := f.wait(ctx); err != nil {
			return err
		}
	}
}

func (f *follower) ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// expired tells whether nothing that is written from now on is wanted.
func (f *follower) expired() bool { return !f.part.Until.IsZero() && !time.Now().Before(f.part.Until) }

// subscribe has the follower woken by every write from now on. It comes before
// anything is read, so that no write goes unnoticed.
func (f *follower) subscribe(follow bool) (err error) {
	if !follow {
		return nil
	}
	f.watch, err = f.s.logs.Watch(f.s.paths.SandboxLogs(f.sandboxID), f.execID)
	if err != nil && f.ended() && errdefs.IsNotFound(err) {
		return f.gone()
	}
	if err != nil && fault.Of(err) == nil {
		return unreadable(f.execID, err)
	}
	return err
}

// deliver sends all that is there. A client that takes nothing for a while is left:
// nothing may wait for it for ever. With last set deliver stops where the log ended
// when it was called: children in the background may write for ever.
func (f *follower) deliver(ctx context.Context, last bool) error {
	delivered := make(chan error, 1)
	f.s.life.senders.Go(func() { delivered <- f.read(ctx, last) })
	before, slow := f.sends.Load(), cmp.Or(f.s.slowReader, slowReader)
	timer := time.NewTimer(slow)
	defer timer.Stop()
	for {
		select {
		case err := <-delivered:
			return err
		case <-timer.C:
		}
		if now := f.sends.Load(); now != before || now%2 == 0 {
			before = now
			timer.Reset(slow)
			continue
		}
		// The end of the handler ends the sending.
		f.s.life.senders.Go(func() {
			<-delivered //nolint:errcheck // the caller has the better error
			f.release()
		})
		f.left = true
		return errSlow(f.execID, slow)
	}
}

// read is the work of deliver.
func (f *follower) read(ctx context.Context, last bool) error {
	if err := f.open(ctx); err != nil || f.reader == nil {
		return err
	}
	end, err := f.reader.Size()
	if err != nil {
		return unreadable(f.execID, err)
	}
	if f.at.Beyond(end) {
		return fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE,
			"The log of exec %s holds %d and %d bytes, the cursor points to %d and %d; start from the beginning or from where you got to.",
			f.execID, end.Stdout, end.Stderr, f.at.Stdout, f.at.Stderr).With("exec_id", f.execID)
	}
	buf := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(buf)
	if err := f.give(buf[:], end, last); err != nil {
		return err
	}
	return f.flush()
}

// give sends what is in the log, or with last set what is before its end. In the
// end it may still hold chunks, which lie in buf.
func (f *follower) give(buf []byte, end logs.Cursor, last bool) error {
	free := buf
	for !last || !reached(f.reader.Cursor(), end) {
		if len(free) < chunkSize/2 || len(f.held) == batchLength {
			if err := f.flush(); err != nil {
				return err
			}
			free = buf
		}
		chunk, err := f.reader.Next(free)
		switch {
		case errors.Is(err, io.EOF):
			return f.move(f.reader.Cursor())
		case err != nil:
			return unreadable(f.execID, err)
		case last && pastEnd(chunk, end) && f.reader.Ordered():
			return nil // written after the end; what was before it has all been given
		}
		if err := f.send(chunk); err != nil {
			return err
		}
		if len(f.held) > 0 {
			free = free[len(chunk.Data):]
		}
	}
	return f.move(f.reader.Cursor())
}

// reached tells whether nothing before end is missing at a cursor.
func reached(at, end logs.Cursor) bool { return at.Stdout >= end.Stdout && at.Stderr >= end.Stderr }

func pastEnd(chunk logs.Chunk, end logs.Cursor) bool {
	if chunk.Stream == logs.Stderr {
		return chunk.Offset >= end.Stderr
	}
	return chunk.Offset >= end.Stdout
}

// open opens the files once they are there. An exec that could not be started
// has none, and an end without output is no failure.
func (f *follower) open(ctx context.Context) error {
	if f.reader != nil && !f.reader.Suspended() {
		return nil
	}
	dir, err := logs.OpenDir(f.s.paths.SandboxLogs(f.sandboxID))
	if err != nil {
		if f.ended() && errdefs.IsNotFound(err) {
			return f.gone()
		}
		return unreadable(f.execID, err)
	}
	defer dir.Close()
	if f.reader != nil {
		if err := f.reader.Resume(dir); err != nil {
			return unreadable(f.execID, err)
		}
		return nil
	}
	reader, err := dir.Open(f.execID, f.at)
	switch {
	case err == nil:
		f.reader = reader
		return f.choose(ctx)
	case !errdefs.IsNotFound(err):
		return unreadable(f.execID, err)
	case f.at != logs.Cursor{}:
		return f.gone()
	}
	f.part.Tail = false // all that is written later is new
	return nil
}

// choose has the reader give what is asked for only.
func (f *follower) choose(ctx context.Context) error {
	if !f.selective {
		return nil
	}
	if f.part.Tail && f.ended() {
		// The last lines may be such as no record tells of.
		status, err := f.s.execStatus(ctx, f.sandboxID, f.execID)
		if err != nil {
			return err
		}
		f.giveUp(status)
	}
	if err := f.reader.Select(ctx, f.part); err != nil {
		return unreadable(f.execID, err)
	}
	if !f.part.Tail {
		return nil
	}
	// A client that comes again needs it, also before it has got a byte.
	return f.moveTo(f.reader.Cursor())
}

// move tells the client where the stream is if it does not know.
func (f *follower) move(to logs.Cursor) error {
	if to == f.at {
		return nil
	}
	return f.moveTo(to)
}

func (f *follower) moveTo(to logs.Cursor) error {
	if err := f.flush(); err != nil {
		return err
	}
	f.at = to
	m, ok := f.to.(mover)
	if !ok {
		return nil
	}
	f.sends.Add(1)
	defer f.sends.Add(1)
	return m.sendMoved(cursorMessage(to))
}

func cursorMessage(at logs.Cursor) *agboxv1.LogCursor {
	return &agboxv1.LogCursor{StdoutOffset: at.Stdout, StderrOffset: at.Stderr}
}

// send sends a chunk, or holds it for a batch. What was left out before it is told
// first, where that is in the same stream or has become much.
func (f *follower) send(chunk logs.Chunk) error {
	after := f.reader.Cursor()
	before, known, other := after, &f.at.Stdout, after.Stderr-f.at.Stderr
	if chunk.Stream == logs.Stderr {
		before.Stderr, known, other = chunk.Offset, &f.at.Stderr, after.Stdout-f.at.Stdout
	} else {
		before.Stdout = chunk.Offset
	}
	if *known != chunk.Offset || other > movedEvery {
		if err := f.moveTo(before); err != nil {
			return err
		}
	}
	out := &agboxv1.LogChunk{
		Stream: agboxv1.LogStream(chunk.Stream),
		Offset: chunk.Offset,
		Data:   chunk.Data,
	}
	if !chunk.Time.IsZero() {
		out.Time = timestamppb.New(chunk.Time)
	}
	*known = chunk.Offset + uint64(len(chunk.Data))
	f.held = append(f.held, out)
	if f.batches {
		return nil
	}
	return f.flush()
}

// flush sends the chunks that are held.
func (f *follower) flush() error {
	held := f.held
	f.held = f.held[:0]
	if len(held) == 0 {
		return nil
	}
	defer clear(held)
	f.sends.Add(1)
	defer f.sends.Add(1)
	if len(held) == 1 {
		return f.to.sendChunk(held[0])
	}
	return f.to.(batchSender).sendBatch(held)
}

// wait returns when there may be more to do. A follower that waits long closes
// its files: a thousand of them need no descriptor.
func (f *follower) wait(ctx context.Context) error {
	rest := time.NewTimer(restAfter)
	defer rest.Stop()
	var until <-chan time.Time
	if !f.part.Until.IsZero() {
		timer := time.NewTimer(time.Until(f.part.Until))
		defer timer.Stop()
		until = timer.C
	}
	for {
		select {
		case <-f.watch.C():
			return nil
		case <-f.done:
			return nil
		case <-until:
			return nil
		case <-f.s.life.stopping:
			return errStopping()
		case <-ctx.Done():
			return ctx.Err()
		case <-rest.C:
			if f.reader == nil || f.reader.Suspended() {
				continue
			}
			if err := f.reader.Suspend(); err != nil {
				return unreadable(f.execID, err)
			}
		}
	}
}

// finish closes the stream with the exec as it is.
func (f *follower) finish(ctx context.Context) error {
	status, err := f.s.execStatus(ctx, f.sandboxID, f.execID)
	if err != nil {
		return err
	}
	if err := f.giveUnindexed(ctx, status); err != nil {
		return err
	}
	end := &agboxv1.LogEnd{Exec: status, Cursor: cursorMessage(f.at)}
	if f.reader != nil {
		end.Notice = f.reader.Notice()
	}
	if f.isShort(status) {
		end.Notice = "The log is shorter than what the command wrote: it was cut or removed."
	}
	return f.to.sendEnd(end)
}

// isShort tells whether output is missing that the process wrote before it ended.
func (f *follower) isShort(status *agboxv1.ExecStatus) bool {
	return !f.selective && !reached(f.at, logs.Cursor{Stdout: status.GetStdoutBytes(), Stderr: status.GetStderrBytes()})
}

// giveUnindexed sends what the process wrote and no record tells of. It has no
// time, so since and until leave nothing of it out; but where a record was met that
// is beyond until, all of it is.
func (f *follower) giveUnindexed(ctx context.Context, status *agboxv1.ExecStatus) error {
	if f.reader == nil || f.reader.Over() || !f.giveUp(status) {
		return nil
	}
	return f.deliver(ctx, true)
}

// giveUp has the reader wait for no further record, if none comes for output that
// there is. A process in the background of an exec that exited may write on: there,
// only the output that was counted is known to be written for good. Of an exec that
// was lost, or killed with its container, nobody counted it, and nobody writes.
func (f *follower) giveUp(status *agboxv1.ExecStatus) bool {
	if status.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		return false
	}
	exited := status.GetUserTime() != nil
	counted := logs.Cursor{Stdout: status.GetStdoutBytes(), Stderr: status.GetStderrBytes()}
	if exited && (reached(f.reader.Cursor(), counted) || reached(f.reader.Indexed(), counted)) {
		return false
	}
	f.reader.Finish()
	return true
}

func (f *follower) gone() error {
	return unreadable(f.execID, errors.New("its files are gone"))
}
