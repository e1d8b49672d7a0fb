package supervisor

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

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
