package supervisor

import (
	"bytes"
	"math"
	"math/rand/v2"

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

// limitsSize is more than /proc/PID/limits has: 17 lines of 79 characters.
const limitsSize = 2 << 10

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
func (m mark) isOn(pid int) bool { return m != 0 && markOf(pid) == m }

// markOf returns the mark of a process, or 0 if it has none. It makes no garbage, because
// each sweep over a tree reads the marks of many processes.
func markOf(pid int) mark {
	var buf [limitsSize]byte
	for line := range bytes.Lines(readProc(pid, "limits", buf[:])) {
		rest, ok := bytes.CutPrefix(line, limitsLine)
		if !ok {
			continue
		}
		var m mark
		for _, c := range bytes.TrimLeft(rest, " ") {
			if c == ' ' {
				return m
			}
			if c < '0' || c > '9' { // "unlimited"
				return 0
			}
			m = 10*m + mark(c-'0')
		}
	}
	return 0
}
