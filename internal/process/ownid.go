// This file gives a process of root a user id of its own, for what the kernel counts per
// user over the whole host. Otherwise root in a container could use up the count of all
// processes of root: the kernel takes it for the same user.
//
// The id is used by single threads, and another one by a process that stands apart. Root's
// rights stay, or come back at once. Without the capability SETUID nothing changes. In a user namespace the id does not exist, but the
// kernel counts there apart.

package process

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Systems give no id from 1<<31 on to a person, a service or a container, and a process of
// another container cannot find out which one was chosen.
const first, ids = 1 << 31, 1<<31 - 16

// own is the id of this process.
var own = sync.OnceValue(choose)

func choose() uintptr { return uintptr(first + rand.Uint32N(ids)) }

// keep as an id of setresuid changes nothing.
const keep = ^uintptr(0)

// SetRealUser makes the id the real user id of the calling thread, which must be locked and
// end with its goroutine. The kernel counts queued signals by the real id of the thread
// that receives them.
func SetRealUser() {
	if os.Geteuid() == 0 {
		_ = setThread(own(), keep)
	}
}

const (
	// nobody is a group that exists in user namespaces too.
	nobody = 65534
	// fewThreads is a limit of processes that a process of root may be near. The kernel
	// applies it to each user but root.
	fewThreads = 1000
)

// StandApart gives all threads of a process of root real ids that differ from its effective
// ones. Then no process without the capability SYS_RESOURCE may set its limits, and signals
// of others do not count for it. The user id stays if the limit of processes is low. Nothing
// changes while the kernel has no room for a signal to root: Go asks each thread by one, and
// would wait for ever. Call it before any thread acts for another user: it would take the
// file system id of that user away again, so a later occasion is none.
func StandApart() {
	if os.Geteuid() != 0 || !roomForSignals() {
		return
	}
	_ = syscall.Setresgid(nobody, -1, -1)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err == nil && limit.Cur >= fewThreads {
		_ = syscall.Setresuid(int(choose()), -1, -1)
	}
}

// roomForSignals reports whether the kernel can queue some more signals for this user.
func roomForSignals() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(status), "\nSigQ:\t")
	var queued, most uint64
	if _, err := fmt.Sscanf(after, "%d/%d", &queued, &most); err != nil {
		return false
	}
	return queued+100 < most
}

// InotifyInit is InotifyInit1 with an instance that counts for the id. So do its watches.
func InotifyInit(flags int) (fd int, err error) {
	if os.Geteuid() != 0 {
		return unix.InotifyInit1(flags)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if setThread(keep, own()) != nil {
			runtime.UnlockOSThread()
			fd, err = unix.InotifyInit1(flags)
			return
		}
		fd, err = unix.InotifyInit1(flags)
		// A thread that is not root again must not be reused: it ends with the goroutine.
		if setThread(keep, 0) == nil {
			runtime.UnlockOSThread()
		}
		// Another effective id has set it for the process, as fs.suid_dumpable says.
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(dumpable), 0, 0, 0)
	}()
	<-done
	return fd, err
}

// setThread sets the real and the effective user id of this thread. The functions of
// package syscall would change all threads.
func setThread(ruid, euid uintptr) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ruid, euid, keep); errno != 0 {
		return errno
	}
	return nil
}
