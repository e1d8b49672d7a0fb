// Package process looks at other processes of this host: whether one is still
// alive, and which one listens behind a Unix socket.
package process

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
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

// Lives tells whether a process exists and goes on running. One that was killed, or
// that is exiting, does not: it still holds its files until the kernel has closed
// them, which can take longer than it shows up as anything but a zombie. A process
// that cannot be looked at lives if the kernel knows its id.
func Lives(pid int) bool {
	if pid <= 0 {
		return false
	}
	lives, err := taskLives(os.DirFS("/proc"), pid)
	if err == nil {
		return lives
	}
	// Gone, or /proc hides it.
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// taskLives is Lives for the process's tasks below proc. All tasks count: a first
// thread that has ended stays a zombie until the last one has, and an exiting
// process closes its files in whichever task is the last.
func taskLives(proc fs.FS, pid int) (bool, error) {
	dir := strconv.Itoa(pid) + "/task"
	tasks, err := fs.ReadDir(proc, dir)
	if err != nil {
		return false, err
	}
	lives := false
	for _, task := range tasks {
		// In this order: a task takes SIGKILL from what pends and then sets the flag.
		status, err := fs.ReadFile(proc, dir+"/"+task.Name()+"/status")
		if err != nil {
			continue // this task has ended since
		}
		stat, err := fs.ReadFile(proc, dir+"/"+task.Name()+"/stat")
		if err != nil {
			continue
		}
		state, flags := readStat(stat)
		if flags&flagSignaled != 0 || killPends(status) {
			return false, nil // the signal ends all tasks
		}
		lives = lives || state != 'Z' && state != 'X' && flags&flagExiting == 0
	}
	return lives, nil
}

// readStat returns state and flags, fields 3 and 9. The command before them can
// hold any character, so fields are counted from the last parenthesis.
func readStat(stat []byte) (state byte, flags uint64) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 {
		return 'X', 0
	}
	flags, _ = strconv.ParseUint(string(fields[6]), 10, 64)
	return fields[0][0], flags
}

// killPends tells whether SIGKILL was sent and not yet acted on.
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
