package supervisor

import (
	"bytes"
	"os"
	"strconv"
)

// oomFiles tell how many processes the kernel has killed for want of memory in
// the container's control group: version 2, then version 1.
var oomFiles = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// oomCounter reads the number of those kills. It keeps the file open, so that a
// command in the container cannot put another one in its place.
type oomCounter struct{ f *os.File }

// openOOMCounter opens the first of the files that is there. Where there is
// none, the count is always 0.
func openOOMCounter(files []string) oomCounter {
	for _, name := range files {
		if f, err := os.Open(name); err == nil {
			return oomCounter{f}
		}
	}
	return oomCounter{}
}

// kills returns the number so far.
func (c oomCounter) kills() uint64 {
	if c.f == nil {
		return 0
	}
	buf := make([]byte, 512)
	n, _ := c.f.ReadAt(buf, 0) // an error is the end of the file
	for line := range bytes.Lines(buf[:n]) {
		if rest, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			kills, _ := strconv.ParseUint(string(bytes.TrimSpace(rest)), 10, 64)
			return kills
		}
	}
	return 0
}

const (
	// killedCode is the exit code of a process that SIGKILL ended, also where a
	// shell passes it on.
	killedCode = 137
	oomMessage = "The kernel killed a process because the sandbox had reached its memory limit: give the sandbox more memory, or let the command use less."
)
