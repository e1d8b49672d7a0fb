package supervisor

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The C library reserves these three signals for its threads, and package os/signal installs
// no handler for them (runtime/sigtab_linux_generic.go).
const (
	threadCancel = syscall.Signal(32)
	threadSetID  = syscall.Signal(33)
	threadSpare  = syscall.Signal(34)
)

// signals are those that the supervisor acts on.
type signals struct {
	term, chld chan os.Signal
	// outside becomes readable with SIGTERM, if this is PID 1.
	outside *os.File
	reading sync.WaitGroup
}

// catchSignals installs handlers for every signal that could end or stop the process. The
// kernel protects PID 1 only from signals without a handler, and the Go runtime has one
// for nearly all. Ignoring the signals instead would be inherited by every exec, and so
// would signals that were ignored when the engine was started, for example by nohup.
func catchSignals() (*signals, error) {
	s := &signals{term: make(chan os.Signal, 1), chld: make(chan os.Signal, 1)}
	signal.Notify(s.chld, syscall.SIGCHLD)
	dropped := make(chan os.Signal, 1) // never read: signals beyond its capacity are dropped
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case threadCancel, threadSetID, threadSpare: // see dropSent
		case syscall.SIGKILL, syscall.SIGSTOP, // cannot be caught
			syscall.SIGURG, // the runtime's own, sent all the time
			syscall.SIGTERM, syscall.SIGCHLD:
		default:
			signal.Notify(dropped, n)
		}
	}
	dropSent()
	if os.Getpid() != 1 {
		signal.Notify(s.term, syscall.SIGTERM)
		return s, nil
	}
	var err error
	if s.outside, err = termFromOutside(); err != nil {
		return nil, err
	}
	s.reading.Go(func() {
		if _, err := s.outside.Read(make([]byte, 8)); err == nil {
			s.term <- syscall.SIGTERM
		}
	})
	return s, nil
}

// stop leaves the file open, because a handler may still write into it.
func (s *signals) stop() {
	signal.Stop(s.term)
	signal.Stop(s.chld)
	if s.outside != nil {
		_ = s.outside.SetReadDeadline(time.Now())
	}
	s.reading.Wait()
}

// The values of sigaction for a signal without a handler.
const (
	actDefault uintptr = 0 // SIG_DFL
	actIgnore  uintptr = 1 // SIG_IGN
)

// kernelAction is the kernel's struct sigaction: the fields after the handler are flags,
// restorer and mask.
type kernelAction struct {
	handler uintptr
	rest    [4]uintptr
}

// kernelMaskSize is the size of a signal set in the kernel, in bytes.
const kernelMaskSize = 8

func actionOf(n syscall.Signal) (act kernelAction) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(n), 0, uintptr(unsafe.Pointer(&act)), kernelMaskSize, 0, 0)
	return act
}

func setAction(n syscall.Signal, act kernelAction) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&act)), 0, kernelMaskSize, 0, 0)
}

// A process in the container may send any signal to PID 1, with any information that
// kill or sigqueue allow. Only the kernel sets a positive code. It sets the sender's id in
// the container, which is 0 for a sender outside. Package os/signal does not tell code and
// sender, and the runtime ends the process for a fault that sigqueue sent. So two handlers
// in assembly stand in front of those of the runtime. They use no stack, no Go code and no
// thread-local data.

// Addresses of the two handlers.
var (
	handleSentAt uintptr // handleSent drops what a process sent, and passes a fault on to the runtime
	handleTermAt uintptr // handleTerm writes one to termFD if the sender is outside
)

// What the handlers use, besides their arguments. It does not change after catchSignals.
var (
	runtimeHandler uintptr     //nolint:unused // read in assembly
	termFD         int32       //nolint:unused // read in assembly
	termOne        uint64  = 1 //nolint:unused // read in assembly
)

// faults are the signals that the runtime takes for faults of the program.
var faults = []syscall.Signal{
	syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSTKFLT, syscall.SIGSYS,
}

// dropSent drops faults that a process sent, and signals of the C library.
func dropSent() {
	fault := actionOf(syscall.SIGSEGV)
	runtimeHandler = fault.handler
	fault.handler = handleSentAt
	for _, n := range faults {
		setAction(n, fault)
	}
	// The kernel does not protect PID 1 from a signal that its first thread blocks at the
	// moment, for example in a handler. Another thread takes it, and the default action ends
	// the process.
	for _, n := range []syscall.Signal{threadCancel, threadSetID, threadSpare} {
		if h := actionOf(n).handler; h == actDefault || h == actIgnore {
			setAction(n, fault)
		}
	}
}

// termFromOutside returns a file that becomes readable when a process outside the container
// sends SIGTERM, as the engine does to stop it. SIGTERM of others is dropped.
func termFromOutside() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd2", err)
	}
	termFD = int32(fd)
	term := actionOf(syscall.SIGTERM)
	term.handler = handleTermAt
	setAction(syscall.SIGTERM, term)
	return os.NewFile(uintptr(fd), "SIGTERM"), nil
}
