package supervisor

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// The C library reserves these three signals for its threads, and the Go runtime installs
// no handler for them (runtime/sigtab_linux_generic.go).
const (
	threadCancel = syscall.Signal(32)
	threadSetID  = syscall.Signal(33)
	threadSpare  = syscall.Signal(34)
)

// catchSignals installs handlers for every signal that could end or stop the process. The
// kernel protects PID 1 only from signals without a handler, and the Go runtime has one
// for nearly all. Ignoring the signals instead would be inherited by every exec, and so
// would signals that were ignored when the engine was started, for example by nohup.
func catchSignals() (term, chld chan os.Signal) {
	term, chld = make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	signal.Notify(chld, syscall.SIGCHLD)
	dropped := make(chan os.Signal, 1) // never read: signals beyond its capacity are dropped
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case threadCancel, threadSetID, threadSpare:
			stopIgnoring(n)
		case syscall.SIGKILL, syscall.SIGSTOP, // cannot be caught
			syscall.SIGURG, // the runtime's own, sent all the time
			syscall.SIGTERM, syscall.SIGCHLD:
		default:
			signal.Notify(dropped, n)
		}
	}
	return term, chld
}

// The values of sigaction for a signal without a handler.
const (
	actDefault uintptr = 0 // SIG_DFL
	actIgnore  uintptr = 1 // SIG_IGN
)

// stopIgnoring restores the default action of a signal that the parent of this process
// ignored. It leaves a handler, which only a C library would install.
func stopIgnoring(n syscall.Signal) {
	if action(n) == actIgnore {
		setAction(n, actDefault)
	}
}

// kernelAction begins like the kernel's struct sigaction on every architecture. The rest
// of it (flags, restorer, mask) may be zero for both values above.
type kernelAction struct {
	handler uintptr
	rest    [4]uintptr
}

// kernelMaskSize is the size of a signal set in the kernel, in bytes.
const kernelMaskSize = 8

func action(n syscall.Signal) uintptr {
	var old kernelAction
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(n), 0, uintptr(unsafe.Pointer(&old)), kernelMaskSize, 0, 0)
	return old.handler
}

func setAction(n syscall.Signal, handler uintptr) {
	act := kernelAction{handler: handler}
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&act)), 0, kernelMaskSize, 0, 0)
}
