package supervisor

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"sync"
)

// oomFiles have the number of processes that the kernel has killed in the container's
// control group because memory was short: version 2, then version 1.
var oomFiles = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// oomCounter reads the number of those kills. It keeps the file open, so a command in the
// container cannot replace it.
type oomCounter struct{ f *os.File }

// openOOMCounter opens the first of the files that exists. If none does, the count is
// always 0.
func openOOMCounter(files []string) oomCounter {
	for _, name := range files {
		if f, err := os.Open(name); err == nil {
			return oomCounter{f}
		}
	}
	return oomCounter{}
}

// kills returns the number of kills so far.
func (c oomCounter) kills() uint64 {
	if c.f == nil {
		return 0
	}
	buf := make([]byte, 512)
	n, _ := c.f.ReadAt(buf, 0) // an error means the end of the file
	for line := range bytes.Lines(buf[:n]) {
		if rest, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			kills, _ := strconv.ParseUint(string(bytes.TrimSpace(rest)), 10, 64)
			return kills
		}
	}
	return 0
}

// limitFiles have the memory limit of the container: version 2, then version 1.
var limitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// bigShare is used when several execs run: a killed process is attributed to an exec only
// if the exec has held 1/bigShare of the memory limit.
const bigShare = 8

// oomJudge finds the exec to which a killed process belonged. The kernel counts kills
// only for the whole container. If a process of an exec ended by SIGKILL while that count
// rose, it is that exec. Otherwise a child was killed whose parent continued: then it is
// the exec that runs alone, or one that has held much of the memory.
type oomJudge struct {
	counter oomCounter
	limit   func() uint64

	// mu guards the fields below.
	mu sync.Mutex
	// running counts the execs between begin and end.
	running int
	// blamed is the count up to which kills are attributed to an exec.
	blamed uint64
}

// oomMark is the kernel's count when an exec began.
type oomMark uint64

func newOOMJudge() *oomJudge {
	return &oomJudge{counter: openOOMCounter(oomFiles), limit: memoryLimit}
}

// begin must be called right before an exec is started.
func (j *oomJudge) begin() oomMark {
	j.mu.Lock()
	j.running++
	j.mu.Unlock()
	return oomMark(j.counter.kills())
}

// end reports whether the kernel killed a process of an exec that has ended. killed means
// that a process ended by a SIGKILL that the supervisor did not send. peak is the peak
// memory of the exec in bytes.
func (j *oomJudge) end(began oomMark, killed bool, peak uint64) bool {
	kills := j.counter.kills()
	rose := kills > uint64(began)
	big := rose && peak >= j.limit()/bigShare
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running--
	if !rose || !killed && (kills <= j.blamed || j.running > 0 && !big) {
		return false
	}
	j.blamed = max(j.blamed, kills)
	return true
}

// memoryLimit returns the memory limit of the container in bytes, or the greatest number
// if there is none.
func memoryLimit() uint64 {
	for _, name := range limitFiles {
		if raw, err := os.ReadFile(name); err == nil {
			if n, err := strconv.ParseUint(string(bytes.TrimSpace(raw)), 10, 64); err == nil {
				return n
			}
			break
		}
	}
	return math.MaxUint64
}

const (
	// killedCode is the exit code of a process that SIGKILL ended. A shell returns the
	// same code for a child that SIGKILL ended.
	killedCode = 137
	oomMessage = "The kernel killed a process because the sandbox had reached its memory limit: give the sandbox more memory, or let the command use less."
)
