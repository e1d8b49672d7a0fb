package output

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

const (
	// readSize is the most that is read from a pipe at once, in bytes.
	readSize = 128 << 10
	// firstPipe is what a pipe holds when it is made, in bytes.
	firstPipe = 64 << 10
	// fullPipe is what a pipe is enlarged to once it was full. Not before: the
	// kernel counts the pipes of a user over all containers, and beyond its limit
	// makes new ones tiny.
	fullPipe = 512 << 10
)

// buffers are held only while there is something in a pipe.
var buffers = sync.Pool{New: func() any { b := make([]byte, readSize); return &b }}

// pump moves one stream of an exec from its pipe into the log.
type pump struct {
	stream logs.Stream
	writer *logs.Writer
	disk   Gate
	// pipe is the reading end; child is the end that the process gets.
	pipe, child *os.File

	// mu guards the fields below.
	// Held across I/O: what is in the pipe and what was taken out of it must be seen
	// at one moment. The read never waits.
	mu sync.Mutex
	// taken counts the bytes that were read, kept those given to the log.
	taken, kept uint64
	// grown is true once the pipe was enlarged, or that was refused.
	grown bool
	// ended is true when there will be no more bytes.
	ended bool
	// waiter is closed when kept reaches goal, or at the end; nil if nobody waits.
	waiter chan struct{}
	goal   uint64
}

// newPumps makes the two pipes of an exec.
func newPumps(w *logs.Writer, disk Gate) (stdout, stderr *pump, err error) {
	if stdout, err = newPump(logs.Stdout, w, disk); err != nil {
		return nil, nil, err
	}
	if stderr, err = newPump(logs.Stderr, w, disk); err != nil {
		_, _ = stdout.pipe.Close(), stdout.child.Close()
		return nil, nil, err
	}
	return stdout, stderr, nil
}

func newPump(stream logs.Stream, w *logs.Writer, disk Gate) (*pump, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	// The reading end waits in the runtime's poller, without a thread. The other
	// end must block, because programs expect that of their output.
	if err := unix.SetNonblock(p[0], true); err != nil {
		_, _ = unix.Close(p[0]), unix.Close(p[1])
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &pump{
		stream: stream,
		writer: w,
		disk:   disk,
		pipe:   os.NewFile(uintptr(p[0]), stream.String()),
		child:  os.NewFile(uintptr(p[1]), stream.String()),
	}, nil
}

// run pumps until nobody has the stream open any more.
func (p *pump) run() {
	defer p.end()
	conn, err := p.pipe.SyscallConn()
	if err != nil {
		return
	}
	for {
		buf, n := p.read(conn)
		if n <= 0 {
			return
		}
		now := time.Now()
		p.disk(func() { p.writer.Write(p.stream, now, (*buf)[:n]) })
		buffers.Put(buf)
		p.wrote(n)
	}
}

// read waits for output and takes it. It returns 0 at the end of the stream. A
// buffer that it returns belongs to the caller.
func (p *pump) read(conn syscall.RawConn) (buf *[]byte, n int) {
	err := conn.Read(func(fd uintptr) bool {
		buf = buffers.Get().(*[]byte)
		var err error
		n, err = p.take(int(fd), *buf)
		if err == nil && n > 0 {
			return true
		}
		buffers.Put(buf)
		buf, n = nil, 0
		return !errors.Is(err, unix.EAGAIN)
	})
	if err != nil {
		return nil, 0
	}
	return buf, n
}

// take reads what is in the pipe now.
func (p *pump) take(fd int, buf []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n, err = unix.Read(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if n > 0 {
		p.taken += uint64(n)
	}
	if errors.Is(err, unix.EAGAIN) {
		p.goal = min(p.goal, p.taken) // less than was there: somebody else has read it
		p.wakeLocked()
	}
	if n >= firstPipe && !p.grown {
		p.grown = true
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, fullPipe)
	}
	return n, err
}

// wrote counts n bytes as given to the log.
func (p *pump) wrote(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept += uint64(n)
	p.wakeLocked()
}

func (p *pump) end() {
	_ = p.pipe.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.wakeLocked()
}

func (p *pump) wakeLocked() {
	if p.waiter != nil && (p.ended || p.kept >= p.goal) {
		close(p.waiter)
		p.waiter = nil
	}
}

// drain returns when everything that was written before the call is in the log,
// however long somebody else keeps the pipe open. Only one caller at a time.
func (p *pump) drain() {
	p.mu.Lock()
	inside := 0
	if !p.ended {
		// A pipe that run has closed meanwhile had nothing in it.
		if conn, err := p.pipe.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) { inside, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		}
	}
	p.goal = p.taken + uint64(max(inside, 0))
	waiter := make(chan struct{})
	p.waiter = waiter
	p.wakeLocked()
	p.mu.Unlock()
	<-waiter
}
