package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tracer is this test binary in a separate process: a traced process counts as a
// child of the tracing thread, which would disturb waiting for the children of the tests.
//
// strace can also kill at the N-th call, but it counts per thread, and a Go program moves
// its work between threads.
const tracerCommand = "trace-and-kill"

// boundaries are the calls at which a process is killed: those that make data durable or
// visible to another process.
var boundaries = map[uint64]string{
	unix.SYS_FDATASYNC: "fdatasync", unix.SYS_FSYNC: "fsync",
	unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "rename",
	unix.SYS_WRITE: "send",
}

// tracer kills a process before its n-th boundary from now on.
type tracer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// traceAndKill returns when the process is being traced.
func traceAndKill(t *testing.T, pid, n int) *tracer {
	t.Helper()
	tr := &tracer{cmd: exec.Command("/proc/self/exe", tracerCommand, strconv.Itoa(pid), strconv.Itoa(n))}
	tr.cmd.Stderr = os.Stderr
	out, err := tr.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if tr.in, err = tr.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := tr.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tr.out = bufio.NewReader(out)
	if line, err := tr.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the tracer says %q (%v)", line, err)
	}
	return tr
}

// killed returns the call before which the process was killed, once the process is gone.
// It returns "" if the tracer was ended before.
func (tr *tracer) killed() string {
	line, _ := tr.out.ReadString('\n')
	_ = tr.cmd.Wait()
	return strings.TrimSpace(line)
}

// end lets the process continue untraced.
func (tr *tracer) end() { _ = tr.in.Close() }

// tracerMain is the tracing process: its arguments are pid and n.
func tracerMain(args []string) int {
	runtime.LockOSThread()
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return 2
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return 2
	}
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0) // detaches from the traced process
	}()
	threads, err := seizeAll(pid)
	if err == nil {
		err = follow(pid, threads, n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		return 1
	}
	return 0
}

const seizeOptions = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD

// seizeAll attaches to all threads, including those that start meanwhile.
func seizeAll(pid int) (threads int, err error) {
	seized := make(map[int]bool)
	for more := true; more; {
		more = false
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return 0, err
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil || seized[tid] {
				continue
			}
			_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, seizeOptions, 0, 0)
			switch {
			case errno == unix.EPERM && len(seized) > 0: // its parent's trace covers it already
			case errno != 0:
				return 0, fmt.Errorf("seize thread %d: %w", tid, errno)
			default:
				if err := unix.PtraceInterrupt(tid); err != nil {
					return 0, err
				}
				more = true
			}
			seized[tid] = true
		}
	}
	return len(seized), nil
}

// follow steps all threads from system call to system call.
func follow(pid, threads, n int) error {
	count, reported := 0, make(map[int]bool)
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		}
		// A thread that ends before it has stopped also counts.
		if reported[tid] = true; len(reported) == threads && threads > 0 {
			fmt.Println("ready")
			threads = 0
		}
		if status.Exited() || status.Signaled() {
			if tid == pid {
				return nil
			}
			continue
		}
		signal := 0
		switch event := status.TrapCause(); {
		case status.StopSignal() == unix.SIGTRAP|0x80:
			if name := enters(pid, tid); name != "" {
				if count++; count == n {
					fmt.Println(name)
					if err := unix.Kill(pid, unix.SIGKILL); err != nil {
						return err
					}
				}
			}
		case event >= 0 && status>>16 != 0: // an event of the tracing itself
		case status>>16 == 0:
			signal = int(status.StopSignal())
		}
		// A thread that was killed meanwhile is reported by the next wait.
		if err := unix.PtraceSyscall(tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
}

// syscallInfo is the start of the kernel's struct ptrace_syscall_info.
type syscallInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64
	nr   uint64
	args [6]uint64
	_    [4]uint64
}

// entry is the value of op at the entry of a call.
const entry = 1

// enters returns the name of the boundary that the thread is about to cross.
func enters(pid, tid int) string {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || info.op != entry {
		return ""
	}
	name := boundaries[info.nr]
	if info.nr == unix.SYS_WRITE {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, info.args[0]))
		if err != nil || !strings.HasPrefix(target, "socket:") {
			return ""
		}
	}
	return name
}
