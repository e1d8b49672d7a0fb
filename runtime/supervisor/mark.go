package supervisor

import (
	"bytes"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// A mark is a number that all processes of an exec share, whatever they do with their
// environment, session and parents. ssh agents, and services started with env -i, change
// all three. The mark is the hard value of a resource limit that no kernel has used since
// Linux 2.4.25. Children inherit it, and every process can read that of every other one.
//
// Nobody in a container can raise a hard limit, and marks descend. So no process can take
// the mark of an exec that was started before its own, for example that of an agent that
// has spawned it.
type mark uint64

// leastMark exceeds every limit on file locks that is in use, and all marks exceed it.
const leastMark mark = 1 << 48

// firstMark is random, so supervisors that see each other's processes, as in a test on
// the host, have different marks.
func firstMark() mark { return 2*leastMark + mark(rand.Uint64N(uint64(leastMark))) }

// limitsLine begins the line of that limit in /proc/PID/limits.
var limitsLine = []byte("Max file locks")

// limitsSize is more than /proc/PID/limits has: 17 lines of 79 characters.
const limitsSize = 2 << 10

// next sets a mark below m on this process and on what it starts, until off is called. Then
// this process has a number that is no mark. It returns 0, and changes nothing, if somebody
// else has set that limit.
func (m mark) next() (worn mark, off func()) {
	var usual unix.Rlimit
	err := unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &usual)
	ours := usual.Max >= uint64(leastMark) // or of a supervisor around this one
	if err != nil || !ours || usual.Cur != usual.Max {
		return 0, func() {}
	}
	if m = min(m, mark(usual.Max)) - 1; !m.set() {
		return 0, func() {}
	}
	return m, func() { (m - 1).set() }
}

func (m mark) set() bool {
	return unix.Prlimit(0, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: uint64(m), Max: uint64(m)}, nil) == nil
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
		rest = bytes.TrimLeft(rest, " ")                                      // the soft limit
		rest = bytes.TrimLeft(rest[max(0, bytes.IndexByte(rest, ' ')):], " ") // the hard one
		var m mark
		for _, c := range rest {
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
