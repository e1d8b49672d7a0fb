// Package process examines other processes of this host: whether a process is alive, which
// one listens on a Unix socket, and whether it is still the same one. It also has what this
// process sets for itself: its user id, its garbage collector, and the variables of Go.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Flags of a task, as in field 9 of proc_pid_stat(5); values from the kernel's
// include/linux/sched.h.
const (
	flagExiting  = 0x4
	flagSignaled = 0x400
)

// sigkillBit is SIGKILL in the sets of pending signals of proc_pid_status(5).
const sigkillBit = 1 << (syscall.SIGKILL - 1)

// Lives reports whether a process exists and will continue to run. It returns false for a
// process that was killed or is exiting. Such a process may hold its files for a while,
// even if it is already shown as a zombie, until the kernel has closed them. If /proc does
// not show the process, Lives reports whether the kernel knows its id.
func Lives(pid int) bool {
	if pid <= 0 {
		return false
	}
	lives, err := taskLives(os.DirFS("/proc"), pid)
	if err == nil {
		return lives
	}
	// The process has ended, or /proc hides it.
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// Stopped reports whether a signal such as SIGSTOP, or Ctrl-Z in a terminal, has stopped the
// process. It returns false if /proc does not show the process.
func Stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	state, _ := readStat(stat)
	return state == 'T'
}

// taskLives implements Lives with the files below proc. It checks all tasks: if the first
// thread has ended, it stays a zombie until the last one has ended, and an exiting process
// closes its files in the task that ends last.
func taskLives(proc fs.FS, pid int) (bool, error) {
	dir := strconv.Itoa(pid) + "/task"
	tasks, err := fs.ReadDir(proc, dir)
	if err != nil {
		return false, err
	}
	lives := false
	for _, task := range tasks {
		// Read status before stat: a task removes SIGKILL from its pending signals first and
		// sets the flag afterwards.
		status, err := fs.ReadFile(proc, dir+"/"+task.Name()+"/status")
		if err != nil {
			continue // the task has ended since the directory was read
		}
		stat, err := fs.ReadFile(proc, dir+"/"+task.Name()+"/stat")
		if err != nil {
			continue
		}
		state, flags := readStat(stat)
		if flags&flagSignaled != 0 || killPends(status) {
			return false, nil // SIGKILL ends all tasks
		}
		lives = lives || state != 'Z' && state != 'X' && flags&flagExiting == 0
	}
	return lives, nil
}

// readStat returns state and flags, fields 3 and 9. The command before them can contain
// any character, so fields are counted from the last parenthesis.
func readStat(stat []byte) (state byte, flags uint64) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 {
		return 'X', 0
	}
	flags, _ = strconv.ParseUint(string(fields[6]), 10, 64)
	return fields[0][0], flags
}

// killPends reports whether SIGKILL is pending.
func killPends(status []byte) bool {
	for line := range bytes.Lines(status) {
		name, set, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "SigPnd" && string(name) != "ShdPnd" {
			continue
		}
		bits, err := strconv.ParseUint(string(bytes.TrimSpace(set)), 16, 64)
		if err == nil && bits&sigkillBit != 0 {
			return true
		}
	}
	return false
}

// GoVariables are the variables that Go's runtime reads at the start of a program, before
// its main function. The supervisor is a Go program in a container whose environment an
// image chooses: GOMEMLIMIT=1 would have it collect garbage for ever.
var GoVariables = []string{"GOCOVERDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK"}

// SplitGoVariables separates the entries of an environment ("NAME=value") that set one of Names.
func SplitGoVariables(env []string) (rest, own []string) {
	for _, entry := range env {
		if isGoVariable(entry) {
			own = append(own, entry)
		} else {
			rest = append(rest, entry)
		}
	}
	return rest, own
}

func isGoVariable(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return slices.Contains(GoVariables, name)
}

// ownGoVariables is what the supervisor needs that is not Go's default. Without profstackdepth=0,
// each of its threads has 2 KB for the stacks of a profiler that it does not have.
var ownGoVariables = map[string]string{"GODEBUG": "profstackdepth=0"}

// SupervisorGoVariables sets all Names: to what the supervisor needs, or to nothing, which Go takes
// for its defaults. An engine cannot remove a variable that an image sets.
func SupervisorGoVariables() []string {
	set := make([]string, len(GoVariables))
	for i, n := range GoVariables {
		set[i] = n + "=" + ownGoVariables[n]
	}
	return set
}

// reserve is how few processes and threads are left when Crowded speaks. One container needs about 45 of them.
const reserve = 300

// Crowded says how many processes and threads this machine has, in a sentence with what to do, if hardly any
// more can start. Otherwise it is empty. What fails then are containers and commands, by errors that do not say why.
func Crowded() string { return crowded(os.DirFS("/proc")) }

func crowded(proc fs.FS) string {
	// proc_loadavg(5): the fourth field is what runs and what exists.
	load, err := fs.ReadFile(proc, "loadavg")
	fields := strings.Fields(string(load))
	if err != nil || len(fields) < 4 {
		return ""
	}
	_, existing, _ := strings.Cut(fields[3], "/")
	now, err := strconv.Atoi(existing)
	if err != nil {
		return ""
	}
	for _, limit := range []string{"pid_max", "threads-max"} {
		text, err := fs.ReadFile(proc, "sys/kernel/"+limit)
		most, bad := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil && bad == nil && now > most-reserve {
			return fmt.Sprintf("This machine has %d processes and threads, and its kernel allows %d: end some, or raise the limit kernel.%s with sysctl.", now, most, limit)
		}
	}
	return ""
}
