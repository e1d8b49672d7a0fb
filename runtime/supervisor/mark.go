package supervisor

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A mark is a number that the processes of an exec have in common, whatever they do
// with their environment, session and parents: agents of ssh, and what is started
// through env -i as services are, change all three. It stands in a limit on resources
// that has meant nothing to any kernel since Linux 2.4.25, is inherited like the
// others, and is shown of every process to everybody.
type mark uint64

// leastMark is more file locks than anybody has a limit for.
const leastMark mark = 1 << 48

// firstMark is another number in each supervisor, in case that one can see the
// processes of others, as in a test on the host.
func firstMark() mark { return leastMark + mark(rand.Uint64N(uint64(leastMark))) }

// limitsLine begins the line of that limit in /proc/PID/limits.
var limitsLine = []byte("Max file locks")

// wear has this process, and what it starts from now on, wear a mark until the
// function that it returns is called. It returns false where somebody has set that
// limit, who then keeps it.
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

// isOn tells whether a process wears the mark; 0 is on none.
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
