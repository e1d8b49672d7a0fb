package supervisor

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A mark is a number that all processes of an exec share, whatever they do with their
// environment, session and parents. ssh agents, and services started with env -i, change
// all three. The mark is the value of a resource limit that no kernel has used since
// Linux 2.4.25. Children inherit it, and every process can read that of every other one.
type mark uint64

// leastMark exceeds every limit on file locks that is in use.
const leastMark mark = 1 << 48

// firstMark is random, so supervisors that see each other's processes, as in a test on
// the host, have different marks.
func firstMark() mark { return leastMark + mark(rand.Uint64N(uint64(leastMark))) }

// limitsLine begins the line of that limit in /proc/PID/limits.
var limitsLine = []byte("Max file locks")

// wear sets the mark on this process and on what it starts, until off is called. It
// returns false, and changes nothing, if somebody has set that limit.
func (m mark) wear() (off func(), ok bool) {
	var usual unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &usual); err != nil || usual.Cur != math.MaxUint64 {
		return func() {}, false
	}
	if err := unix.Prlimit(0, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: uint64(m), Max: usual.Max}, nil); err != nil {
		return func() {}, false
	}
	return func() { _ = unix.Prlimit(0, unix.RLIMIT_LOCKS, &usual, nil) }, true
}

// isOn reports whether a process has the mark. The mark 0 is on no process.
func (m mark) isOn(pid int) bool {
	if m == 0 {
		return false
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(raw) {
		if rest, ok := bytes.CutPrefix(line, limitsLine); ok {
			soft := bytes.Fields(rest)
			return len(soft) > 0 && string(soft[0]) == strconv.FormatUint(uint64(m), 10)
		}
	}
	return false
}
