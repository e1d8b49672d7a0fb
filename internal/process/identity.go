package process

import (
	"bytes"
	"os"
	"strconv"
	"strings"

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
