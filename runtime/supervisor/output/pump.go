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
	// readSize is the most that a pump reads at once, in bytes.
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

// pump moves the output of a terminal, or of a pipe whose order nobody tells, into
// the log. It waits in the runtime's poller, without a thread.
type pump struct {
	progress
	stream logs.Stream
	writer *logs.Writer
	disk   Gate
	// file is the master of the terminal, or the reading end of the pipe.
	file     *os.File
	terminal bool
	// grown is true once the pipe was enlarged, or that was refused.
	grown bool
}

// newPipePump makes a pipe. child is the end that the process gets.
func newPipePump(stream logs.Stream, w *logs.Writer, disk Gate) (p *pump, child *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	// The other end must block, because programs expect that of their output.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(fds[0]), stream.String())
	return &pump{stream: stream, writer: w, disk: disk, file: file}, os.NewFile(uintptr(fds[1]), stream.String()), nil
}

// run pumps until nobody has the other end open any more, or the file is closed.
func (p *pump) run() {
	defer p.end()
	conn, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		buf, n := p.wait(conn)
		if n <= 0 {
			break // EIO is the end of a terminal
		}
		now := time.Now()
		p.disk(func() { p.writer.Write(p.stream, now, (*buf)[:n]) })
		buffers.Put(buf)
		p.wrote(n)
	}
	if !p.terminal { // that would hang up on a process that opens the terminal again
		_ = p.file.Close()
	}
}

// wait waits for output and takes it. It returns 0 at the end. A buffer that it
// returns belongs to the caller.
func (p *pump) wait(conn syscall.RawConn) (buf *[]byte, n int) {
	err := conn.Read(func(fd uintptr) bool {
		buf = buffers.Get().(*[]byte)
		var err error
		if n, err = p.read(func() (int, error) { return p.take(int(fd), *buf) }); n > 0 {
			return true
		}
		buffers.Put(buf)
		buf = nil
		return !errors.Is(err, unix.EAGAIN)
	})
	if err != nil {
		return nil, 0
	}
	return buf, n
}

// take reads what is there now. Of a terminal that comes in small pieces.
func (p *pump) take(fd int, buf []byte) (n int, err error) {
	for n < len(buf) {
		var got int
		got, err = unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n += max(got, 0); err != nil || got <= 0 || !p.terminal {
			break
		}
	}
	if n >= firstPipe && !p.terminal && !p.grown {
		p.grown = true
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, fullPipe)
	}
	return n, err
}

// drain returns when everything that was written before the call is in the log,
// however long somebody else keeps the other end open. Only one caller at a time.
func (p *pump) drain() {
	<-p.await(func() (inside int) {
		// A pipe that run has closed meanwhile had nothing in it.
		if conn, err := p.file.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) { inside = p.inside(int(fd)) })
		}
		return inside
	})
}

// inside returns how many bytes there are at most.
func (p *pump) inside(fd int) int {
	if !p.terminal {
		return bytesIn(fd)
	}
	// The kernel brings up what is still on its way before it answers.
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); err == nil && n == 0 {
		return 0
	}
	return terminalHolds
}

// progress counts the output of one pipe or terminal on its way into the log, and
// tells when all output up to a moment is there.
type progress struct {
	// mu guards the fields below.
	// Held across I/O: what was taken and what is still inside must be seen at one
	// moment. The reads never wait.
	mu sync.Mutex
	// taken counts the bytes that were read, kept those given to the log.
	taken, kept uint64
	// goal is what kept must reach; meaningful while somebody waits.
	goal uint64
	// reached is closed when kept has reached goal, or at the end; nil if nobody waits.
	reached chan struct{}
	// ended is true when there will be no more bytes.
	ended bool
}

// read takes output with a call that does not wait. EAGAIN says that nothing is left.
func (p *progress) read(call func() (int, error)) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, err = call(); n > 0 {
		p.taken += uint64(n)
	}
	if errors.Is(err, unix.EAGAIN) {
		// Less may be there than await has seen: a process has read its own output.
		p.goal = min(p.goal, p.taken)
		p.tellLocked()
	}
	return n, err
}

// awaited tells whether somebody waits.
func (p *progress) awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reached != nil
}

// wrote counts n bytes as given to the log.
func (p *progress) wrote(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept += uint64(n)
	p.tellLocked()
}

// end says that there will be no more bytes.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.tellLocked()
}

func (p *progress) tellLocked() {
	if p.reached != nil && (p.ended || p.kept >= p.goal) {
		close(p.reached)
		p.reached = nil
	}
}

// await returns a channel that is closed when all that was written before the call is
// in the log. inside returns how many bytes are still in the pipe at most; it is not
// called after the end. Only one caller at a time may wait.
func (p *progress) await(inside func() int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	reached := make(chan struct{})
	p.reached, p.goal = reached, p.taken
	if !p.ended {
		p.goal += uint64(max(inside(), 0))
	}
	p.tellLocked()
	return reached
}

// bytesIn returns how many bytes a pipe holds.
func bytesIn(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.TIOCINQ) // of a pipe it is always known
	return n
}

// Gate runs fn when there is room. It bounds the threads that wait for the disk.
type Gate func(fn func())
