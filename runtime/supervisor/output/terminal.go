package output

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
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
