package output

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetSize is the most that one packet of a pipe holds: a page, which not every
// kernel has of 4 KiB. What of a packet has no room in a read is lost.
var packetSize = os.Getpagesize()

// sidePipe is the sequencer's own pipe, into which those of commands are emptied: a
// splice moves all packets at one moment, and without copying.
type sidePipe struct {
	r, w int
	// least is how many packets it held when it was made, slots how many it holds.
	least, slots int
}

func newSidePipe() (*sidePipe, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	s := &sidePipe{r: p[0], w: p[1], least: slotsOf(p[0])}
	s.slots = s.least
	return s, nil
}

func (s *sidePipe) close() { _, _ = unix.Close(s.r), unix.Close(s.w) }

// grow enlarges a pipe that was full, as far as this one can be enlarged too, and returns
// how many packets it then holds.
func (s *sidePipe) grow(fd, slots int) int {
	want := fullPipe / packetSize
	if slots >= want {
		return slots
	}
	if s.slots < want {
		s.slots = resize(s.r, want, s.slots)
	}
	return resize(fd, min(want, s.slots), slots)
}

// shrink returns what the kernel counts for the pipe beyond what it had at first.
func (s *sidePipe) shrink() {
	if s.slots > s.least {
		s.slots = resize(s.r, s.least, s.slots)
	}
}

// fill moves all that is in a pipe into this one, which must be empty. EAGAIN says that
// there is nothing, 0 that nobody has the other end open.
func (s *sidePipe) fill(from int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(s.w), 0, 1<<30, unix.SPLICE_F_NONBLOCK)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// resize has a pipe hold so many packets instead of slots, and returns how many it then
// holds. The kernel refuses what would take a user beyond its limit.
func resize(fd, want, slots int) int {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, want*packetSize)
	if err != nil {
		return slots
	}
	return max(got/packetSize, 1)
}

// slotsOf returns how many packets a pipe holds.
func slotsOf(fd int) int {
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		size = firstPipe
	}
	return max(size/packetSize, 1)
}

// readNow reads without waiting, and without telling the runtime, which would
// prepare for a wait.
func readNow(fd int, buf []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
