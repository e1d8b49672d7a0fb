package output

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
)

const (
	// tokenSignal is the signal that the kernel queues for each write. Signals of
	// its kind are queued, not merged, and those of one number keep their order.
	tokenSignal = unix.Signal(40)
	// lostSignal is what the kernel sends when it cannot queue one more.
	lostSignal = unix.SIGIO
	// wakeSignal wakes the thread. It is of the kind that can always be sent.
	wakeSignal = unix.SIGUSR2
	// ownerThread is F_OWNER_TID: the signals are for one thread.
	ownerThread = 0
	// tokensAtOnce is how many tokens are fetched with one call.
	tokensAtOnce = 64
)

// tokenQueue is the queue of signals of one thread.
type tokenQueue struct {
	tid, fd int
	infos   [tokensAtOnce]unix.SignalfdSiginfo
}

// open makes the queue that of the calling thread, which must end with its goroutine.
func (q *tokenQueue) open() (err error) {
	var set unix.Sigset_t
	for _, s := range []unix.Signal{tokenSignal, lostSignal, wakeSignal} {
		set.Val[(s-1)/64] |= 1 << ((s - 1) % 64)
	}
	// Only of this thread: one that the runtime makes, and a process, start without.
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil); err != nil {
		return os.NewSyscallError("sigprocmask", err)
	}
	// With the id of root, a process of another sandbox could use up the signals.
	process.SetRealUser()
	q.tid = unix.Gettid()
	q.fd, err = unix.Signalfd(-1, &set, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
	return os.NewSyscallError("signalfd", err)
}

func (q *tokenQueue) close() { _ = unix.Close(q.fd) }

// interrupt sends the wake signal. Any thread may call it.
func (q *tokenQueue) interrupt() { _ = unix.Tgkill(unix.Getpid(), q.tid, wakeSignal) }

// wait waits for signals.
func (q *tokenQueue) wait() {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}}, -1)
}

// fetch returns the next signals of the queue, oldest first; none if it is empty.
func (q *tokenQueue) fetch() []unix.SignalfdSiginfo {
	const size = unsafe.Sizeof(q.infos[0])
	n, err := readNow(q.fd, unsafe.Slice((*byte)(unsafe.Pointer(&q.infos)), size*tokensAtOnce))
	if err != nil {
		return nil
	}
	return q.infos[:n/int(size)]
}

// pipe makes a pipe in packet mode. Each write into it queues a token.
func (q *tokenQueue) pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
		return 0, 0, os.NewSyscallError("pipe2", err)
	}
	owner := struct{ kind, id int32 }{ownerThread, int32(q.tid)}
	_, _, errno := unix.Syscall(unix.SYS_FCNTL, uintptr(p[0]), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_FCNTL, uintptr(p[0]), unix.F_SETSIG, uintptr(tokenSignal))
	}
	if errno == 0 {
		// The other end must block, because programs expect that of their output.
		_, _, errno = unix.Syscall(unix.SYS_FCNTL, uintptr(p[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK)
	}
	if errno != 0 {
		_, _ = unix.Close(p[0]), unix.Close(p[1])
		return 0, 0, os.NewSyscallError("fcntl", errno)
	}
	return p[0], p[1], nil
}

// disown ends the tokens of a pipe.
func disown(fd int) { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK) }

// try writes twice into a pipe, and expects two tokens and two packets.
func (q *tokenQueue) try(side *sidePipe) error {
	r, w, err := q.pipe()
	if err != nil {
		return err
	}
	defer func() { _, _ = unix.Close(r), unix.Close(w) }()
	var buf [2]byte
	for range 2 {
		if _, err := unix.Write(w, buf[:1]); err != nil {
			return err
		}
	}
	infos := q.fetch()
	if len(infos) != 2 || infos[0].Fd != int32(r) || infos[1].Fd != int32(r) {
		return errors.New("not each write is told")
	}
	if n, err := side.fill(r); n != 2 {
		return fmt.Errorf("a pipe is not emptied at one moment: %d, %w", n, err)
	}
	for range 2 {
		if n, err := readNow(side.r, buf[:]); n != 1 {
			return fmt.Errorf("writes are not kept apart: %d, %w", n, err)
		}
	}
	return nil
}
