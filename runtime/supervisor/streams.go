package supervisor

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

const (
	// maxWriters is how many writers of an exec are remembered; one takes some 200 bytes.
	// A writer that newer ones replaced starts at 0 again and cannot continue.
	maxWriters = 1024
	// maxWaiting bounds the bytes of all waiting calls, so that processes that do not
	// read cannot fill the memory of the supervisor.
	maxWaiting = 16 << 20
	// inputPiece is the maximum size of one write, in bytes.
	inputPiece = 256 << 10
	// inputFirst is the initial capacity of a pipe, in bytes.
	inputFirst = 64 << 10
	// inputPipe is the capacity that a pipe gets when much input arrives, in bytes.
	inputPipe = 512 << 10
	// stallLimit is how long a call with more than rpc.SmallStdin bytes waits until the
	// process reads one piece. Then the call fails and frees its memory.
	stallLimit = 2 * time.Second
)

// input is the standard input of an exec, or the keyboard of its terminal.
type input struct {
	// file is the write end of a pipe, or the master of the terminal. A blocked write
	// waits in the runtime's poller and needs no thread.
	file *os.File
	tty  bool
	// turn has room for the one call that writes. Waiting calls are served in order of
	// arrival.
	turn chan struct{}
	// gone is closed when nothing can be written any more.
	gone chan struct{}
	// grown is true once the pipe was enlarged, or enlarging it failed. Only the call
	// that has the turn uses it.
	grown bool

	// mu guards the fields below. It is never held across I/O.
	mu      sync.Mutex
	writers map[string]*typist
	calls   uint64
	closed  bool
}

// typist is the state of one writer.
type typist struct {
	// count is how many of its bytes were passed to the process.
	count uint64
	// eof is true once its end was passed on, which happens only once.
	eof bool
	// last is the number of its last call.
	last uint64
}

// goesBefore reports whether the writer is forgotten before another one. Writers that
// have ended go first, then those that have not written for the longest time.
func (w *typist) goesBefore(other *typist) bool {
	if w.eof != other.eof {
		return w.eof
	}
	return w.last < other.last
}

func newInput(file *os.File, tty bool) *input {
	return &input{
		file: file, tty: tty,
		turn: make(chan struct{}, 1), gone: make(chan struct{}),
		writers: make(map[string]*typist),
	}
}

// stdinPipe makes the pipe of an exec's standard input. child is the end for the process.
// It blocks, because programs expect that.
func stdinPipe() (in *input, child *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(p[1], true); err != nil {
		_, _ = unix.Close(p[0]), unix.Close(p[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return newInput(os.NewFile(uintptr(p[1]), "stdin"), false), os.NewFile(uintptr(p[0]), "stdin"), nil
}

// errGap refuses bytes that do not continue where their writer's count ends.
var errGap = rpc.Errorf(rpc.InvalidArgument, "the bytes before the offset have not been written by this writer")

// write performs a WriteStdin. written is the count of the writer; it is also valid with
// an error.
func (in *input) write(ctx context.Context, req *guestv1.WriteStdinRequest) (written uint64, open bool, err error) {
	if len(req.GetData()) == 0 && !req.GetEof() {
		return in.count(req.GetWriter()), in.readable(), nil
	}
	select {
	case in.turn <- struct{}{}:
		defer func() { <-in.turn }()
	case <-in.gone:
		return in.count(req.GetWriter()), false, nil
	case <-ctx.Done():
		return 0, false, ctx.Err()
	}
	if in.isClosed() { // calls that get their turn later must not change the state any more
		return in.count(req.GetWriter()), false, nil
	}
	w := in.typist(req.GetWriter())
	count := in.count(req.GetWriter())
	if req.GetOffset() > count {
		return count, !in.isClosed(), errGap
	}
	known := min(count-req.GetOffset(), uint64(len(req.GetData())))
	rest := req.GetData()[known:]
	n, err := in.put(ctx, rest)
	in.mu.Lock()
	w.count += uint64(n)
	written, ended := w.count, w.eof
	in.mu.Unlock()
	if err == nil && n == len(rest) && req.GetEof() && !ended {
		err = in.typeEnd(ctx, w)
	}
	return written, !in.isClosed(), err
}

// put writes data and returns how many bytes were written. It stops without an error if
// nobody can read them any more, or if a large piece was not read in time.
func (in *input) put(ctx context.Context, data []byte) (done int, err error) {
	finished := make(chan struct{})
	unless := context.AfterFunc(ctx, func() {
		defer close(finished)
		_ = in.file.SetWriteDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !unless() {
			<-finished // otherwise it would interrupt the next call
		}
	}()
	for done < len(data) {
		piece := data[done:min(len(data), done+inputPiece)]
		limit := time.Time{}
		if len(data)-done > rpc.SmallStdin {
			limit = time.Now().Add(stallLimit)
		}
		_ = in.file.SetWriteDeadline(limit)
		// Check only now: the new deadline has undone an earlier interrupt.
		if in.isClosed() {
			return done, nil
		}
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		in.grow(len(piece))
		n, err := in.file.Write(piece)
		done += max(n, 0)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return done, ctx.Err()
		default: // nobody holds the other end open, or the exec has ended
			in.shut()
			return done, nil
		}
	}
	return done, nil
}

// grow enlarges the pipe once a large piece arrives, not before: the kernel limits the
// total pipe memory of a user, and beyond that limit new pipes are tiny.
func (in *input) grow(piece int) {
	if in.grown || in.tty || piece < inputFirst {
		return
	}
	in.grown = true
	in.control(func(fd int) { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, inputPipe) })
}

// typeEnd passes the end of a writer on. It closes a pipe. At a terminal it writes the
// character that currently means end of file there.
func (in *input) typeEnd(ctx context.Context, w *typist) error {
	if !in.tty {
		in.shut()
	} else {
		end := byte(0)
		in.control(func(fd int) {
			if t, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
				end = t.Cc[unix.VEOF]
			}
		})
		if end != 0 { // 0 means that the terminal has no such character
			if n, err := in.put(ctx, []byte{end}); n == 0 {
				return err
			}
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	w.eof = true
	return nil
}

// typist returns the state of a writer. For a new one it may forget an old one.
func (in *input) typist(name string) *typist {
	in.mu.Lock()
	defer in.mu.Unlock()
	w := in.writers[name]
	if w == nil {
		if len(in.writers) >= maxWriters {
			first := ""
			for other, o := range in.writers {
				if first == "" || o.goesBefore(in.writers[first]) {
					first = other
				}
			}
			delete(in.writers, first)
		}
		w = new(typist)
		in.writers[name] = w
	}
	in.calls++
	w.last = in.calls
	return w
}

func (in *input) count(writer string) uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	if w := in.writers[writer]; w != nil {
		return w.count
	}
	return 0
}

// readable reports whether somebody can read what would be written.
func (in *input) readable() bool {
	if in.isClosed() {
		return false
	}
	broken := false
	in.control(func(fd int) {
		p := []unix.PollFd{{Fd: int32(fd)}} // POLLERR is always reported
		n, err := unix.Poll(p, 0)
		broken = err == nil && n > 0 && p[0].Revents&unix.POLLERR != 0
	})
	if broken && !in.tty {
		in.shut()
	}
	return !in.isClosed()
}

// control calls fn with the descriptor, unless the file is closed.
func (in *input) control(fn func(fd int)) {
	conn, err := in.file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { fn(int(fd)) })
}

func (in *input) isClosed() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.closed
}

// shut ends the input and every waiting call. It does not block. The master of a terminal
// stays open for the output.
func (in *input) shut() {
	if in == nil {
		return
	}
	in.mu.Lock()
	already := in.closed
	in.closed = true
	in.mu.Unlock()
	if already {
		return
	}
	close(in.gone)
	_ = in.file.SetWriteDeadline(time.Unix(1, 0))
	if !in.tty {
		_ = in.file.Close()
	}
}

// interrupted reports whether a system call must be repeated.
func interrupted(err error) bool { return errors.Is(err, syscall.EINTR) }
