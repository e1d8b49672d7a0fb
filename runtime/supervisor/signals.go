package supervisor

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// The C library keeps these three for its threads, and the Go runtime leaves them
// alone: it takes no handler for them (runtime/sigtab_linux_generic.go).
const (
	threadCancel = syscall.Signal(32)
	threadSetID  = syscall.Signal(33)
	threadSpare  = syscall.Signal(34)
)

// catchSignals takes every signal that could end or stop the process. PID 1 is
// spared by the kernel only from signals without a handler, and the Go runtime
// has one for nearly all. Ignoring them instead would be inherited by every exec, as
// would what the engine was itself started with, by nohup for one.
func catchSignals() (term, chld chan os.Signal) {
	term, chld = make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	signal.Notify(chld, syscall.SIGCHLD)
	dropped := make(chan os.Signal, 1) // never read: what does not fit is dropped
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

// The kernel's answers to a signal without a handler.
const (
	actDefault uintptr = 0 // SIG_DFL
	actIgnore  uintptr = 1 // SIG_IGN
)

// stopIgnoring gives a signal that was ignored by whoever started this process its
// default action. A handler, which only a C library would have, stays.
func stopIgnoring(n syscall.Signal) {
	if action(n) == actIgnore {
		setAction(n, actDefault)
	}
}

// kernelAction begins like the kernel's struct sigaction on every architecture; the
// rest of it (flags, restorer, mask) is as good as zero for both answers above.
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
