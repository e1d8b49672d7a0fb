package supervisor

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is one entry of /proc.
type process struct {
	pid, parent, group, session int
	// start is the time of its start in clock ticks; with the pid it is unique.
	start uint64
	// memory is what of it is in memory, in bytes.
	memory uint64
}

// key tells processes apart although pids are used again.
type key struct {
	pid   int
	start uint64
}

func (p process) key() key { return key{p.pid, p.start} }

// processes lists what is alive. Zombies are left out: they need no kill.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close() // only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// readProcess returns a process that is alive.
func readProcess(pid int) (process, bool) {
	p, state, ok := readStat(pid)
	return p, ok && state != 'Z' && state != 'X'
}

// readStat reads /proc/PID/stat; see proc_pid_stat(5). The command in it can
// hold any character, so fields are counted from the last parenthesis.
func readStat(pid int) (p process, state byte, ok bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, 0, false
	}
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	const parent, group, session, start, resident = 1, 2, 3, 19, 21
	if len(f) <= resident {
		return process{}, 0, false
	}
	number := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	return process{
		pid: pid, parent: number(parent), group: number(group), session: number(session),
		start: uint64(number(start)), memory: uint64(number(resident) * os.Getpagesize()),
	}, f[0][0], true
}

// tree says which processes belong to an exec.
type tree struct {
	// leader is the pid of the exec's first process; 0 takes everything below this
	// process.
	leader int
	// mark is on the exec's processes.
	mark mark
	// marker is the entry of the environment that the exec's processes inherit.
	marker string
	// known were seen to belong to it; they stay in it whatever they do.
	known map[key]bool
}

// look returns the living processes of the tree and remembers them. A process
// belongs to it by its process group, its session, its parents, its mark, or its
// environment: it would have to change all five while nobody looks. What is not below
// this process belongs to somebody else, whatever it looks like.
func (t *tree) look(leaderAlive bool) []process {
	self := os.Getpid()
	all := processes()
	parents := make(map[int]int, len(all))
	for _, p := range all {
		parents[p.pid] = p.parent
		// Once the leader is gone, its number at another process means that the
		// number was given away, and group and session say nothing.
		if p.pid == t.leader && !leaderAlive {
			t = &tree{leader: -1, mark: t.mark, marker: t.marker, known: t.known}
		}
	}
	var found []process
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

func (t *tree) has(p process, self int) bool {
	if t.leader == 0 {
		return p.parent == self
	}
	return p.pid == t.leader || p.group == t.leader || p.session == t.leader || t.mark.isOn(p.pid) ||
		t.marker != "" && inEnvironment(p.pid, t.marker)
}

// elsewhere tells whether pid is surely not below self. It may be where a parent is
// missing: that one ended while the list was read.
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

// hasAncestor tells whether pid or one of its ancestors is in the set.
func hasAncestor(pid int, parents map[int]int, set map[int]bool) bool {
	for range len(parents) + 1 { // a list that was read while it changed may have circles
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
	// maxEnvironment is the most that the kernel lets a program start with, in bytes.
	maxEnvironment = 6 << 20
	// environmentPiece is how much of it is held at a time.
	environmentPiece = 16 << 10
)

// hasEntry looks for an entry in an environment as /proc shows it, each with a NUL
// behind it. A process can claim any part of its memory to be its environment, also
// one that is larger than all memory there is: so it is read in pieces, and not
// beyond what a real one can have.
func hasEntry(environ io.Reader, entry string) bool {
	buf := make([]byte, environmentPiece)
	same := 0 // how much of entry the present one begins with; -1 if it is another
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

// inEnvironment tells whether a process has an entry in its environment; false if
// that cannot be read.
func inEnvironment(pid int, entry string) bool {
	f := openEnvironment(pid)
	if f == nil {
		return false
	}
	defer f.Close() // only read
	return hasEntry(f, entry)
}

// openEnvironment opens the environment of a process; nil if it cannot. The kernel
// shows it to the same user only, not to a root without CAP_SYS_PTRACE, so the
// thread takes that user's identity for the file system while it opens it.
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
	// The identity belongs to the thread. A thread that cannot change back stays
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

// kill sends sig to the process that p was when it was seen, and to no other
// that has got its number since.
func (p process) kill(sig syscall.Signal) {
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
	// A kernel or seccomp profile without pidfds: the number is a moment old.
	_ = unix.Kill(p.pid, sig)
}

// oomPreference is the oom_score_adj of execs: the kernel kills them before the
// supervisor, and before anything else on the host that asks for nothing.
const oomPreference = "500"

// preferForOOM makes a new process a better choice for the kernel when memory is
// short. Its children inherit that. Without it the exec runs all the same.
func preferForOOM(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte(oomPreference))
	_ = unix.Close(fd)
}
