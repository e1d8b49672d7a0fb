package output

import (
	"errors"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

const (
	// defaultRows and defaultColumns are those of a terminal that nobody measured.
	defaultRows, defaultColumns = 24, 80
	// MaxSize is the most rows or columns of a terminal.
	MaxSize = math.MaxUint16
	// terminalHolds is more than the kernel keeps of a terminal's output, in bytes.
	terminalHolds = 64 << 10
)

// The multiplexer that makes terminals; /dev/ptmx may also be a link to the second.
var multiplexers = []string{"/dev/ptmx", "/dev/pts/ptmx"}

// The device numbers of the multiplexer.
const multiplexerMajor, multiplexerMinor = 5, 2

// terminal is the master of an exec's terminal. It moves the output into the log.
type terminal struct {
	master *os.File
	writer *logs.Writer
	disk   Gate

	// mu guards the fields below.
	// Held across I/O: that nothing is in the terminal, and how much was taken out of
	// it, must be seen at one moment. The read never waits.
	mu sync.Mutex
	// taken counts the bytes that were read, kept those given to the log.
	taken, kept uint64
	// goal is what kept must reach for drain to return.
	goal     uint64
	draining bool
	// ended is true when there will be no more bytes.
	ended bool
	// drained is closed when kept has reached goal, or at the end.
	drained chan struct{}
}

// OpenTerminal makes a terminal in the container's own devpts, for a user, of a size
// in characters; 0 stands for the usual one. slave is the end that the process gets.
// The error matches ENOSPC if all terminals are in use.
func OpenTerminal(uid int, rows, columns uint32) (master, slave *os.File, err error) {
	var fd int
	for _, name := range multiplexers {
		if fd, err = openMultiplexer(name); err == nil {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	peer, err := openPeer(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, nil, err
	}
	// As login does, so that the user can open its terminal by name. Who may not
	// change owners has a terminal all the same.
	_ = unix.Fchown(peer, uid, -1)
	SetSize(fd, rows, columns)
	if t, err := unix.IoctlGetTermios(peer, unix.TCGETS); err == nil {
		t.Iflag |= unix.IUTF8 // erasing takes away a character, not a byte
		_ = unix.IoctlSetTermios(peer, unix.TCSETS, t)
	}
	return os.NewFile(uintptr(fd), "terminal"), os.NewFile(uintptr(peer), "terminal"), nil
}

// openMultiplexer opens a new master, unlocked. Anybody may have put something
// else in its place, so it must be the device.
func openMultiplexer(name string) (int, error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFCHR ||
		unix.Major(st.Rdev) != multiplexerMajor || unix.Minor(st.Rdev) != multiplexerMinor) {
		err = errors.New("it is not the device that it should be")
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// openPeer opens the other end of a master. It goes by the master and not by a
// name, which the container could have replaced.
func openPeer(master int) (int, error) {
	for {
		fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EINTR:
		default:
			return 0, os.NewSyscallError("TIOCGPTPEER", errno)
		}
	}
}

// SetSize sets the size of a terminal, in characters; 0 stands for the usual one. The
// kernel tells the foreground processes.
func SetSize(fd int, rows, columns uint32) {
	if rows == 0 {
		rows = defaultRows
	}
	if columns == 0 {
		columns = defaultColumns
	}
	_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{
		Row: uint16(min(rows, MaxSize)), Col: uint16(min(columns, MaxSize)),
	})
}

func newTerminal(master *os.File, w *logs.Writer, disk Gate) *terminal {
	return &terminal{master: master, writer: w, disk: disk, drained: make(chan struct{})}
}

// run moves output until nobody has the terminal open any more. The master stays
// open: to close it would hang up on a process that opens the terminal again.
func (t *terminal) run() {
	defer t.end()
	conn, err := t.master.SyscallConn()
	if err != nil {
		return
	}
	for {
		var buf *[]byte
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			buf = buffers.Get().(*[]byte)
			var err error
			if n, err = t.take(int(fd), *buf); n > 0 {
				return true
			}
			buffers.Put(buf)
			buf = nil
			return !errors.Is(err, unix.EAGAIN)
		})
		if err != nil || n <= 0 {
			return // EIO is the end of a terminal
		}
		now := time.Now()
		t.disk(func() { t.writer.Write(logs.Stdout, now, (*buf)[:n]) })
		buffers.Put(buf)
		t.mu.Lock()
		t.kept += uint64(n)
		t.wakeLocked()
		t.mu.Unlock()
	}
}

// take reads what is in the terminal now, which comes in small pieces.
func (t *terminal) take(fd int, buf []byte) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n < len(buf) {
		var got int
		got, err = unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || got <= 0 {
			break
		}
		n += got
	}
	t.taken += uint64(n)
	if errors.Is(err, unix.EAGAIN) {
		t.emptyLocked()
	}
	return n, err
}

// emptyLocked notes that all that was written has been taken.
func (t *terminal) emptyLocked() {
	if t.draining {
		t.goal = min(t.goal, t.taken)
		t.wakeLocked()
	}
}

func (t *terminal) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.wakeLocked()
}

func (t *terminal) wakeLocked() {
	if t.draining && (t.ended || t.kept >= t.goal) {
		t.draining = false
		close(t.drained)
	}
}

// drain returns when everything that was written before the call is in the log,
// however long somebody else keeps the terminal open. It is called once.
func (t *terminal) drain() {
	t.mu.Lock()
	t.draining, t.goal = true, t.taken+terminalHolds
	if t.ended {
		t.wakeLocked()
	} else if conn, err := t.master.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			// The kernel brings up what is still on its way before it answers.
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, 0); err == nil && n == 0 {
				t.emptyLocked()
			}
		})
	}
	t.mu.Unlock()
	<-t.drained
}
