package supervisor_test

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asForger in the environment makes the test binary a program that lets the kernel send a
// process, given by its pid, the signals with which it detects writes.
const asForger = "AGBOX_TEST_AS_FORGER"

func init() {
	if pid := os.Getenv(asForger); pid != "" {
		runtime.LockOSThread()
		if err := forge(pid, 500); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// forge sends signals to each thread of a process, as if for many descriptors, rounds
// times.
func forge(pid string, rounds int) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK); err != nil {
		return err
	}
	tasks, err := os.ReadDir("/proc/" + pid + "/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		for range 24 { // the first descriptors also belong to pipes of the supervisor
			fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(p[0]), unix.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			for _, claimed := range []int{fd, fd%40 + 10} {
				if claimed != fd && unix.Dup2(fd, claimed) != nil {
					continue
				}
				owner := struct{ kind, id int32 }{0, int32(tid)}
				_, _, _ = unix.Syscall(unix.SYS_FCNTL, uintptr(claimed), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
				_, _ = unix.FcntlInt(uintptr(claimed), unix.F_SETSIG, 40)
				if _, err := unix.FcntlInt(uintptr(claimed), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK); err != nil {
					return err
				}
			}
		}
	}
	var one [1]byte
	for range rounds {
		if _, err := unix.Write(p[1], one[:]); err != nil {
			return err
		}
		_, _ = unix.Read(p[0], one[:])
	}
	return nil
}

// A process that may signal the supervisor can let the kernel report writes that did not
// happen. That may cost the order of concurrent output, but no byte.
func TestForgedSignalsOfWritesCostNoByte(t *testing.T) {
	b := newBox(t)
	records, c := b.ends(), b.dial()
	self, err := os.Executable()
	b.must(err)
	forger := request("forger", self)
	forger.Env = []string{asForger + "=" + strconv.Itoa(b.cmd.Process.Pid)}
	// Queued signals are counted for all processes of the user. Some are left to tests that
	// run beside this one and need them.
	var limit unix.Rlimit
	b.must(unix.Prlimit(b.cmd.Process.Pid, unix.RLIMIT_SIGPENDING, nil, &limit))
	b.must(unix.Prlimit(b.cmd.Process.Pid, unix.RLIMIT_SIGPENDING, &unix.Rlimit{Cur: limit.Cur / 4, Max: limit.Max}, nil))
	b.start(c, forger)
	for _, pattern := range []string{"alternate", "random"} {
		b.start(c, writer(t, pattern, pattern, 5000))
	}
	for range 3 {
		if r := b.nextWhileLogsGrow(records); r.GetExitCode() != 0 {
			t.Errorf("%v: %s", r, b.file("logs/"+r.GetExecId()+".stderr.log"))
		}
	}
	for _, pattern := range []string{"alternate", "random"} {
		if _, count := b.disorder(pattern); count != 5000 {
			t.Errorf("%s: %d of 5000 messages", pattern, count)
		}
	}
	// Afterwards the order is known again.
	b.must(unix.Prlimit(b.cmd.Process.Pid, unix.RLIMIT_SIGPENDING, &limit, nil))
	b.writeAtOnce(1, "later", "random", 2000)
}
