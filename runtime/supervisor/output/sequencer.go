package output

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

const (
	// tokenSignal is the signal that the kernel queues for each write. Signals of
	// its kind are queued, not merged, and those of one number keep their order.
	tokenSignal = unix.Signal(40)
	// lostSignal is what the kernel sends when it cannot queue one more.
	lostSignal = unix.SIGIO
	// lookSignal wakes the sequencer. It is of the kind that can always be sent.
	lookSignal = unix.SIGUSR2
	// ownerThread is F_OWNER_TID: the signals are for one thread.
	ownerThread = 0
	// tokensAtOnce is how many tokens are fetched with one call.
	tokensAtOnce = 64
)

// sequencer reads the pipes of all ordered execs, on a thread of its own that gets
// the tokens. The thread never waits for anything but them, so a disk that hangs
// keeps no exec but those whose output it should take.
type sequencer struct {
	tid int
	// waits and polls are descriptors of the queue of tokens; a read of the first
	// waits until there is one.
	waits, polls int
	stopped      sync.WaitGroup

	// mu guards the fields below.
	mu sync.Mutex
	// lanes finds the lane of a token by its descriptor.
	lanes map[int32]laneOf
	// wake are execs to look at.
	wake     []*ordered
	stopping bool

	// The thread alone uses what follows.

	infos [tokensAtOnce]unix.SignalfdSiginfo
	ready []*ordered
	// fetched are execs with tokens that are not yet counted.
	fetched []*ordered
	ends    bool
}

// laneOf is a lane of an exec.
type laneOf struct {
	exec *ordered
	lane int
}

// startSequencer starts the thread. It fails where the kernel does not give
// tokens as they are needed.
func startSequencer() (*sequencer, error) {
	q := &sequencer{lanes: make(map[int32]laneOf)}
	began := make(chan error)
	q.stopped.Go(func() {
		runtime.LockOSThread() // for ever: the thread ends with its blocked signals
		err := q.begin()
		began <- err
		if err == nil {
			q.run()
			_, _ = unix.Close(q.waits), unix.Close(q.polls)
		}
	})
	if err := <-began; err != nil {
		q.stopped.Wait()
		return nil, err
	}
	return q, nil
}

// stop ends the thread. All execs must have ended.
func (q *sequencer) stop() {
	if q == nil {
		return
	}
	q.mu.Lock()
	q.stopping = true
	q.interruptLocked()
	q.mu.Unlock()
	q.stopped.Wait()
}

// begin prepares the thread and tries whether tokens come.
func (q *sequencer) begin() (err error) {
	var set unix.Sigset_t
	for _, s := range []unix.Signal{tokenSignal, lostSignal, lookSignal} {
		set.Val[(s-1)/64] |= 1 << ((s - 1) % 64)
	}
	// Only of this thread: one that the runtime makes, and a process, start without.
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil); err != nil {
		return os.NewSyscallError("sigprocmask", err)
	}
	q.tid = unix.Gettid()
	if q.waits, err = unix.Signalfd(-1, &set, unix.SFD_CLOEXEC); err != nil {
		return os.NewSyscallError("signalfd", err)
	}
	if q.polls, err = unix.Signalfd(-1, &set, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK); err != nil {
		_ = unix.Close(q.waits)
		return os.NewSyscallError("signalfd", err)
	}
	if err := q.try(); err != nil {
		_, _ = unix.Close(q.waits), unix.Close(q.polls)
		return fmt.Errorf("the order of writes is not told: %w", err)
	}
	return nil
}

// try writes twice into a pipe, and expects two tokens and two packets.
func (q *sequencer) try() error {
	r, w, err := q.packetPipe()
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
	came, err := unix.Read(q.polls, q.bytes())
	if err != nil {
		return err
	}
	infos := q.infos[:came/int(unsafe.Sizeof(q.infos[0]))]
	if len(infos) != 2 || infos[0].Fd != int32(r) || infos[1].Fd != int32(r) {
		return errors.New("not each write is told")
	}
	if n, err := unix.Read(r, buf[:]); err != nil || n != 1 {
		return fmt.Errorf("writes are not kept apart: %d, %w", n, err)
	}
	return nil
}

// packetPipe makes a pipe in packet mode. Of each write into it the sequencer's
// thread is told.
func (q *sequencer) packetPipe() (r, w int, err error) {
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

// open makes the outputs of an exec. The exec is read from now on, and must be run.
func (q *sequencer) open(w *logs.Writer, disk Gate) (*ordered, error) {
	x := &ordered{seq: q, writer: w, disk: disk, out: make(chan *batch, inFlight)}
	for i := range x.lanes {
		read, write, err := q.packetPipe()
		if err != nil {
			if i > 0 {
				_, _ = unix.Close(x.lanes[0].fd), x.child[0].Close()
			}
			return nil, err
		}
		slots := slotsOf(read)
		x.lanes[i] = lane{fd: read, slots: slots, asked: slots * uint64(packetSize), drained: slots, mark: slots, empty: true}
		x.child[i] = os.NewFile(uintptr(write), streamOf[i].String())
	}
	x.again = time.AfterFunc(time.Hour, func() { q.look(x) })
	x.again.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range x.lanes {
		q.lanes[int32(x.lanes[i].fd)] = laneOf{x, i}
	}
	return x, nil
}

// look has the thread look at an exec.
func (q *sequencer) look(x *ordered) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopping {
		q.wake = append(q.wake, x)
		q.interruptLocked()
	}
}

// interruptLocked wakes the thread, which is there until stop.
func (q *sequencer) interruptLocked() {
	_ = unix.Tgkill(unix.Getpid(), q.tid, lookSignal)
}

// run is the thread.
func (q *sequencer) run() {
	var now []*ordered
	for !q.ends {
		if len(q.ready) == 0 {
			q.fetch(q.waits)
		}
		q.drain()
		now, q.ready = q.ready, now[:0]
		for _, x := range now {
			x.ready = false
		}
		for _, x := range now {
			if x.step() {
				q.add(x)
			}
		}
		clear(now)
	}
}

func (q *sequencer) add(x *ordered) {
	if !x.ready {
		x.ready = true
		q.ready = append(q.ready, x)
	}
}

// drain takes all tokens there are and counts them.
func (q *sequencer) drain() {
	q.fetchAll()
	for i := 0; i < len(q.fetched); i++ { // more are fetched meanwhile
		q.fetched[i].count()
	}
	clear(q.fetched)
	q.fetched = q.fetched[:0]
}

// fetchAll takes all tokens there are.
func (q *sequencer) fetchAll() {
	for q.fetch(q.polls) == tokensAtOnce {
	}
}

// fetch takes tokens and hands them out. It returns how many they were.
func (q *sequencer) fetch(fd int) int {
	var n int
	var err error
	if fd == q.waits {
		n, err = unix.Read(fd, q.bytes())
	} else {
		n, err = readNow(fd, q.bytes())
	}
	if err != nil || n <= 0 {
		return 0
	}
	infos := q.infos[:n/int(unsafe.Sizeof(q.infos[0]))]
	lost := false
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range infos {
		switch info := &infos[i]; unix.Signal(info.Signo) {
		case tokenSignal:
			if of, ok := q.lanes[info.Fd]; ok && info.Code > 0 { // from the kernel
				if of.exec.came(of.lane) {
					q.fetched = append(q.fetched, of.exec)
				}
				q.add(of.exec)
			}
		case lostSignal:
			lost = true
		case lookSignal:
			for _, x := range q.wake {
				q.add(x)
			}
			clear(q.wake)
			q.wake, q.ends = q.wake[:0], q.stopping
		}
	}
	if lost {
		for _, of := range q.lanes {
			of.exec.forget()
			q.add(of.exec)
		}
	}
	return len(infos)
}

// bytes is the memory of infos.
func (q *sequencer) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&q.infos)), unsafe.Sizeof(q.infos))
}

// remove closes a pipe. No token of it is left afterwards that could be taken for
// one of the next pipe of that number.
func (q *sequencer) remove(fd int) {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK)
	q.drain()
	q.mu.Lock()
	delete(q.lanes, int32(fd))
	q.mu.Unlock()
	_ = unix.Close(fd)
}
