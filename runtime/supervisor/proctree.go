package supervisor

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// proc is one entry of /proc.
type proc struct {
	pid, parent, group, session int
	// start is its start time in clock ticks. Together with the pid it is unique.
	start uint64
	// memory is its resident memory in bytes.
	memory uint64
}

// key identifies a process even after its pid is reused.
type key struct {
	pid   int
	start uint64
}

func (p proc) key() key { return key{p.pid, p.start} }

// processes lists the living processes. It leaves out zombies, which need no kill.
func processes() []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close() // only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	all := make([]proc, 0, len(names))
	buf := make([]byte, statSize)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' { // an error of Atoi would be garbage for each
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, state, ok := readStat(pid, buf); ok && alive(state) {
			all = append(all, p)
		}
	}
	return all
}

// readProcess returns a process if it is alive.
func readProcess(pid int) (proc, bool) {
	p, state, ok := readStat(pid, make([]byte, statSize))
	return p, ok && alive(state)
}

func alive(state byte) bool { return state != 'Z' && state != 'X' }

// The fields of /proc/PID/stat from the state on; see proc_pid_stat(5).
const (
	statState, statParent, statGroup, statSession                = 0, 1, 2, 3
	statUserTime, statSystemTime, statReapedUser, statReapedTime = 11, 12, 13, 14
	statStart, statResident                                      = 19, 21

	statFields = statResident + 1
	// statSize is enough for the fields above, at 20 digits each, and the command name.
	statSize = 1 << 10
)

// readStat reads /proc/PID/stat into buf, which has statSize bytes.
func readStat(pid int, buf []byte) (p proc, state byte, ok bool) {
	f, ok := fieldsOfStat(readProc(pid, "stat", buf))
	if !ok {
		return proc{}, 0, false
	}
	number := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	return proc{
		pid: pid, parent: number(statParent), group: number(statGroup), session: number(statSession),
		start: uint64(number(statStart)), memory: uint64(number(statResident) * os.Getpagesize()),
	}, f[statState][0], true
}

// fieldsOfStat returns the fields of /proc/PID/stat, and false if some are missing. The
// command name in it can have any character, so fields are counted from the last
// parenthesis.
func fieldsOfStat(raw []byte) (f [statFields][]byte, ok bool) {
	n := 0
	for field := range bytes.FieldsSeq(raw[bytes.LastIndexByte(raw, ')')+1:]) {
		if f[n] = field; n == statFields-1 {
			return f, true
		}
		n++
	}
	return f, false
}

// readProc reads the beginning of a file of a process in /proc, as much as buf holds. It
// returns nothing on failure. It makes next to no garbage, because it is called often: each
// exec has the memory of its tree sampled, and each sample reads all processes.
func readProc(pid int, file string, buf []byte) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }() // only read
	size := 0
	for size < len(buf) {
		n, err := unix.Read(fd, buf[size:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		size += n
	}
	return buf[:size]
}

// tree identifies the processes that belong to an exec.
type tree struct {
	// leader is the pid of the exec's first process. 0 selects everything below this
	// process.
	leader int
	// mark is the mark of the exec's processes.
	mark mark
	// marker is the entry of the environment that the exec's processes inherit.
	marker string
	// known are processes that belonged to the tree once. They stay in it whatever they
	// do.
	known map[key]bool
}

// look returns the living processes of the tree and remembers them. A process belongs to
// the tree by its process group, session, ancestors, mark or environment. To leave the
// tree, it would have to change all five between two calls. Processes that are not below
// this process never belong to the tree.
func (t *tree) look(leaderAlive bool) []proc {
	self := os.Getpid()
	all := processes()
	parents := make(map[int]int, len(all))
	for _, p := range all {
		parents[p.pid] = p.parent
		// Once the leader is gone, another process with its pid means that the pid was
		// reused. Then group and session prove nothing.
		if p.pid == t.leader && !leaderAlive {
			t = &tree{leader: -1, mark: t.mark, marker: t.marker, known: t.known}
		}
	}
	var found []proc
	belongs := make(map[int]bool)
	for _, p := range all {
		if p.pid != self && (t.known[p.key()] || t.has(p, self)) && !elsewhere(p.pid, parents, self) {
			belongs[p.pid] = true
		}
	}
	for _, p := range all {
		if p.pid != self && hasAncestor(p.pid, parents, belongs) {
			t.known[p.key()] = true
			found = append(found, p)
		}
	}
	return found
}

// has tells whether a process shows by itself that it belongs to the tree. To read its
// environment costs most and comes last. It is needed where there is no mark: the engine
// has set the limit that carries marks (RLIMIT_LOCKS), or the process has.
func (t *tree) has(p proc, self int) bool {
	if t.leader == 0 {
		return p.parent == self
	}
	return p.pid == t.leader || p.group == t.leader || p.session == t.leader || t.mark.isOn(p.pid) ||
		t.marker != "" && inEnvironment(p.pid, t.marker)
}

// elsewhere reports whether pid is certainly not below self. That is uncertain if a
// parent is missing, because it ended while the list was read.
func elsewhere(pid int, parents map[int]int, self int) bool {
	for range len(parents) + 1 {
		switch parent, ok := parents[pid]; {
		case pid == self:
			return false
		case !ok:
			return pid == 0
		default:
			pid = parent
		}
	}
	return false
}

// hasAncestor reports whether pid or one of its ancestors is in the set.
func hasAncestor(pid int, parents map[int]int, set map[int]bool) bool {
	for range len(parents) + 1 { // a list that was read while processes changed may have cycles
		if set[pid] {
			return true
		}
		parent, ok := parents[pid]
		if !ok {
			return false
		}
		pid = parent
	}
	return false
}

const (
	// maxEnvironment is the maximum size of the environment of a new process, in bytes.
	maxEnvironment = 6 << 20
	// environmentPiece is the size of one read of it, in bytes.
	environmentPiece = 16 << 10
)

// hasEntry looks for an entry in an environment as in /proc, where each entry ends with
// NUL. A process can declare any part of its memory to be its environment, also one
// larger than all physical memory. So it is read in pieces, and at most up to
// maxEnvironment.
func hasEntry(environ io.Reader, entry string) bool {
	buf := make([]byte, environmentPiece)
	same := 0 // how many bytes of entry the current one matches; -1 if it differs
	for left := maxEnvironment; left > 0; {
		n, err := environ.Read(buf[:min(left, len(buf))])
		for _, b := range buf[:n] {
			switch {
			case b == 0 && same == len(entry):
				return true
			case b == 0:
				same = 0
			case same >= 0 && same < len(entry) && entry[same] == b:
				same++
			default:
				same = -1
			}
		}
		if err != nil {
			return same == len(entry)
		}
		left -= n
	}
	return false
}

// inEnvironment reports whether a process has an entry in its environment. It returns
// false if the environment cannot be read.
func inEnvironment(pid int, entry string) bool {
	f := openEnvironment(pid)
	if f == nil {
		return false
	}
	defer f.Close() // only read
	return hasEntry(f, entry)
}

// openEnvironment opens the environment of a process. It returns nil on failure. Only the
// same user may read it, and root only with CAP_SYS_PTRACE. So the thread takes the file
// system identity of that user while it opens the file.
func openEnvironment(pid int) *os.File {
	dir := "/proc/" + strconv.Itoa(pid)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil
	}
	name := dir + "/environ"
	if int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		f, _ := os.Open(name)
		return f
	}
	// The identity belongs to the thread. A thread that cannot restore its own stays
	// locked and ends with this goroutine.
	result := make(chan *os.File, 1)
	go func() {
		runtime.LockOSThread()
		uid, gid := os.Geteuid(), os.Getegid()
		_, _ = unix.SetfsgidRetGid(int(st.Gid))
		_, _ = unix.SetfsuidRetUid(int(st.Uid))
		f, _ := os.Open(name)
		_, _ = unix.SetfsuidRetUid(uid)
		_, _ = unix.SetfsgidRetGid(gid)
		if now, _ := unix.SetfsuidRetUid(-1); now == uid {
			if now, _ := unix.SetfsgidRetGid(-1); now == gid {
				runtime.UnlockOSThread()
			}
		}
		result <- f
	}()
	return <-result
}

// kill sends sig to the process p. It does not signal another process that has reused its
// pid.
func (p proc) kill(sig syscall.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
	}
	if now, ok := readProcess(p.pid); !ok || now.start != p.start {
		return
	}
	if err == nil {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
		if err == nil || errors.Is(err, unix.ESRCH) {
			return
		}
	}
	// The kernel or the seccomp profile does not allow pidfds. The pid was read a moment
	// ago.
	_ = unix.Kill(p.pid, sig)
}

// oomPreference is the oom_score_adj of execs. The kernel kills them before the
// supervisor, and before other processes of the host with the default value.
const oomPreference = "500"

// preferForOOM raises the oom_score_adj of a new process. Its children inherit that. The
// exec also runs if this fails.
func preferForOOM(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte(oomPreference))
	_ = unix.Close(fd)
}

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
