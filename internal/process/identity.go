package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Identity distinguishes a process from all others of this host, also from earlier ones
// that had its pid.
type Identity struct {
	// PID is the id in the namespace of the caller.
	PID int `json:"pid"`
	// Start is the start time in clock ticks since the kernel's start, as in field 22 of
	// proc_pid_stat(5). It is 0 if /proc hides the process.
	Start uint64 `json:"start"`
	// Kernel is the kernel's own boot id.
	Kernel string `json:"kernel"`
}

// Identify returns the identity of the process that has the pid now.
func Identify(pid int) Identity {
	id := Identity{PID: pid}
	if raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		id.Kernel = strings.TrimSpace(string(raw))
	}
	if raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil {
		id.Start = startTime(raw)
	}
	return id
}

// Alive reports whether the process exists and will continue to run. It is false for one that
// /proc hides.
func (id Identity) Alive() bool {
	return id.Start != 0 && Identify(id.PID) == id && Lives(id.PID)
}

// endLook is the longest pause between two looks whether a process has ended: it is not a child of
// ours, so nothing reports its end. Most end within a few milliseconds.
const endLook = 16 * time.Millisecond

// End ends the process with SIGTERM, and with SIGKILL after the grace. It returns when the
// process has ended, and nil too if it had ended before.
func (id Identity) End(ctx context.Context, grace time.Duration) error {
	// Where the kernel has pidfds, p stays this process, also if its pid is used again.
	p, err := os.FindProcess(id.PID)
	if err != nil || !id.Alive() {
		return nil
	}
	defer func() { _ = p.Release() }()
	kill := time.After(grace)
	err = p.Signal(syscall.SIGTERM)
	for pause := time.Millisecond; !id.over(); pause = min(2*pause, endLook) {
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("process %d cannot be ended: %w", id.PID, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-kill:
			err = p.Signal(syscall.SIGKILL)
		case <-time.After(pause):
		}
	}
	return nil
}

// SetHostname sets the host name that the process sees, with all others of its namespace, if it is was until
// then. It is an error if that is the namespace of the caller. Only root may do it: with name as was, it only
// tries whether the caller may, because another caller may set one meanwhile.
func (id Identity) SetHostname(was, name string) error {
	space, err := os.Open("/proc/" + strconv.Itoa(id.PID) + "/ns/uts")
	if err != nil {
		return err
	}
	defer space.Close()
	if !id.Alive() { // else the file is of another process
		return os.ErrProcessDone
	}
	var its, own unix.Stat_t
	if err := errors.Join(unix.Fstat(int(space.Fd()), &its), unix.Stat("/proc/self/ns/uts", &own)); err != nil {
		return err
	}
	if its.Ino == own.Ino {
		return fmt.Errorf("process %d has the host name of this machine", id.PID)
	}
	return onThread(func() error {
		err := os.NewSyscallError("setns", unix.Setns(int(space.Fd()), unix.CLONE_NEWUTS))
		var now unix.Utsname
		if err == nil {
			err = os.NewSyscallError("uname", unix.Uname(&now))
		}
		if err == nil && name != was && unix.ByteSliceToString(now.Nodename[:]) == was {
			err = os.NewSyscallError("sethostname", unix.Sethostname([]byte(name)))
		}
		return err
	})
}

// onThread runs work on a thread that ends afterwards. It is not the main thread, which never ends, and whose
// namespaces /proc/self shows as those of the process.
func onThread(work func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onThread(work) // on another one, because this goroutine has the main thread
			runtime.UnlockOSThread()
			return
		}
		done <- work() // locked for ever: the thread ends with the goroutine
	}()
	return <-done
}

// over reports whether nothing of the process runs. The first process of a PID namespace is
// not over before all others of the namespace are.
func (id Identity) over() bool {
	if Identify(id.PID) != id {
		return true
	}
	dir := "/proc/" + strconv.Itoa(id.PID)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return true
	}
	state, _ := readStat(stat)
	tasks, err := os.ReadDir(dir + "/task")
	return err != nil || state == 'Z' && len(tasks) <= 1
}

// startTime reads field 22. See readStat about the fields before it.
func startTime(stat []byte) uint64 {
	const field = 22 - 3 // the first one after the command is field 3
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= field {
		return 0
	}
	ticks, _ := strconv.ParseUint(string(fields[field]), 10, 64)
	return ticks
}

// firstNamespace is the inode of the PID namespace that the kernel starts with, from
// PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h.
const firstNamespace = 0xEFFFFFFC

// SeesAll reports whether every process of the host has a pid in the namespace of the
// caller. In any other namespace, processes outside it have none, and Peer returns 0.
func SeesAll() bool {
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &st) == nil && st.Ino == firstNamespace
}

// Peer returns the id of the process that listens on the Unix socket behind conn.
func Peer(conn net.Conn) (pid int, err error) {
	pid, _, err = PeerUser(conn)
	return pid, err
}

// PeerUser is like Peer, and also returns the user id that the process had when it began
// to listen.
func PeerUser(conn net.Conn) (pid, uid int, err error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, 0, errors.New("not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return 0, 0, err
	}
	return int(cred.Pid), int(cred.Uid), nil
}
