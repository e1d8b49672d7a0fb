package server

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

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
