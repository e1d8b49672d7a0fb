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

// changes are the calls that change a file or a folder, and which argument has the
// descriptor: of the file itself, or of the folder that the next argument, a path, begins at.
var changes = map[uint64]struct {
	name string
	fd   int
	path bool
}{
	unix.SYS_WRITE: {"write", 0, false}, unix.SYS_PWRITE64: {"write", 0, false}, unix.SYS_FTRUNCATE: {"write", 0, false},
	unix.SYS_FCHMOD: {"chmod", 0, false}, unix.SYS_FCHOWN: {"chmod", 0, false},
	unix.SYS_FDATASYNC: {"fdatasync", 0, false}, unix.SYS_FSYNC: {"fsync", 0, false}, unix.SYS_SYNCFS: {"fsync", 0, false},
	unix.SYS_RENAMEAT: {"rename", 0, true}, unix.SYS_RENAMEAT2: {"rename", 0, true}, unix.SYS_UNLINKAT: {"unlink", 0, true},
	unix.SYS_MKDIRAT: {"mkdir", 0, true}, unix.SYS_SYMLINKAT: {"symlink", 1, true},
}

// tracer kills a process before its n-th boundary from now on.
type tracer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// traceAndKill returns when the process is being traced. below has the boundaries be the
// changes of files below that folder instead, if it is not empty.
func traceAndKill(t *testing.T, pid, n int, below string) *tracer {
	t.Helper()
	tr := &tracer{cmd: exec.Command("/proc/self/exe", tracerCommand, strconv.Itoa(pid), strconv.Itoa(n), below)}
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

// tracerMain is the tracing process: its arguments are pid, n and below.
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
		err = follow(pid, threads, n, args[2])
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

// follow steps all threads from system call to system call. It counts boundaries once it has
// said that it is ready: until then, a thread that it does not stop yet crosses them unseen.
func follow(pid, threads, n int, below string) error {
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
			if name := enters(pid, tid, below); name != "" && threads == 0 {
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
func enters(pid, tid int, below string) string {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || info.op != entry {
		return ""
	}
	if below != "" {
		return changed(pid, info, below)
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

// changed returns the name of the call if it is about to change something below a folder.
func changed(pid int, info syscallInfo, below string) string {
	call, ok := changes[info.nr]
	if !ok {
		return ""
	}
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, int32(info.args[call.fd])))
	if err != nil {
		at = "" // AT_FDCWD: the path is absolute
	}
	if call.path {
		name := textAt(pid, info.args[call.fd+1])
		if !filepath.IsAbs(name) {
			name = filepath.Join(at, name)
		}
		at = name
	}
	if at != below && !strings.HasPrefix(at, below+"/") {
		return ""
	}
	return call.name
}

// textAt returns the text at an address of a process.
func textAt(pid int, address uint64) string {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return ""
	}
	defer mem.Close() // only read
	text := make([]byte, unix.PathMax)
	n, _ := mem.ReadAt(text, int64(address)) // fewer at the end of the memory
	before, _, _ := strings.Cut(string(text[:n]), "\x00")
	return before
}
