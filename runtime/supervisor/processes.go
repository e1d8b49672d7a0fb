package supervisor

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

const (
	// maxListed bounds the answer to one call in bytes. With a last process it is shorter than
	// rpc.MaxReply.
	maxListed = rpc.MaxReply - 8<<10
	// maxListedCommand is how much of a command line a list shows, in bytes. Made valid text, it
	// can become twice as long.
	maxListedCommand = rpc.MaxRecordedText / 2
	// maxListedUser is the longest name of a user that a list shows, in bytes.
	maxListedUser = 64
	// ticks is how many clock ticks /proc counts per second, on every architecture of Go.
	ticks = 100
)

// listProcesses lists the processes with pids above after. The answer has more than most bytes
// only by its last process.
func (s *Supervisor) listProcesses(after, most int) *guestv1.ProcessesResponse {
	now, self := time.Now(), os.Getpid()
	booted := now.Add(-sinceBoot())
	resp := &guestv1.ProcessesResponse{At: guestv1.New(now)}
	all, leaders := processes(), s.registry.leaders()
	slices.SortFunc(all, func(x, y proc) int { return cmp.Compare(x.pid, y.pid) })
	parents := make(map[int]int, len(all))
	for _, p := range all {
		parents[p.pid] = p.parent
	}
	names, size := s.userNames(), 0
	for _, p := range all {
		if p.pid <= after || elsewhere(p.pid, parents, self) {
			continue
		}
		if resp.More = size > most; resp.More {
			break
		}
		if shown := showProcess(p, booted, names); shown != nil {
			shown.ExecId = leaders.execOf(p, parents)
			resp.Processes = append(resp.Processes, shown)
			size += shown.SizeVT() + 4 // its key and length
		}
	}
	return resp
}

// sinceBoot is the time since the host was started, suspensions included.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // the kernel always has this clock
	return time.Duration(ts.Nano())
}

// showProcess returns nil for a process that has ended.
func showProcess(p proc, booted time.Time, names map[int]string) *guestv1.Process {
	var buf [statSize]byte
	f, ok := fieldsOfStat(readProc(p.pid, "stat", buf[:]))
	if !ok {
		return nil
	}
	number := func(i int) uint64 { n, _ := strconv.ParseUint(string(f[i]), 10, 64); return n }
	shown := &guestv1.Process{
		Pid: uint32(p.pid), ParentPid: uint32(p.parent), State: string(f[statState]),
		StartedAt:   guestv1.New(booted.Add(time.Duration(p.start) * (time.Second / ticks))),
		CpuMs:       (number(statUserTime) + number(statSystemTime)) * (1000 / ticks),
		MemoryBytes: p.memory, Command: commandOf(p.pid),
	}
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(p.pid), &st) == nil {
		if shown.User = names[int(st.Uid)]; shown.User == "" {
			shown.User = strconv.FormatUint(uint64(st.Uid), 10)
		}
	}
	return shown
}

// commandOf is the command line of a process, shortened, or its name in brackets if it has
// overwritten it with nothing.
func commandOf(pid int) string {
	var buf [maxListedCommand]byte
	line := string(bytes.ReplaceAll(bytes.TrimRight(readProc(pid, "cmdline", buf[:]), "\x00"), []byte{0}, []byte{' '}))
	if line == "" {
		line = "[" + string(bytes.TrimSpace(readProc(pid, "comm", buf[:]))) + "]"
	}
	return strings.ToValidUTF8(line, "\uFFFD")
}

// userNames are the names of users by their numbers.
func (s *Supervisor) userNames() map[int]string {
	names := make(map[int]string)
	passwd, err := readUserFile(s.cfg.Passwd)
	if err != nil {
		return names
	}
	_, _ = user.ParsePasswdFilter(bytes.NewReader(passwd), func(u user.User) bool { // without names, the list has numbers
		if _, known := names[u.Uid]; !known && len(u.Name) <= maxListedUser && utf8.ValidString(u.Name) {
			names[u.Uid] = u.Name
		}
		return false
	})
	return names
}

// leaders are the first processes of the running execs, by their pids.
type leaders map[int]leader

type leader struct {
	execID string
	mark   mark
}

// leaders returns the first processes of the running execs.
func (r *registry) leaders() leaders {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := make(leaders)
	for id, e := range r.execs {
		if e.child != nil {
			found[e.child.pid] = leader{id, e.child.mark}
		}
	}
	return found
}

// execOf returns the exec that a process belongs to, by its ancestors, process group, session
// or mark, or "".
func (l leaders) execOf(p proc, parents map[int]int) string {
	for pid, steps := p.pid, 0; steps <= len(parents) && pid != 0; pid, steps = parents[pid], steps+1 {
		if of, ok := l[pid]; ok {
			return of.execID
		}
	}
	for _, pid := range [...]int{p.group, p.session} {
		if of, ok := l[pid]; ok {
			return of.execID
		}
	}
	if on := markOf(p.pid); on != 0 {
		for _, of := range l {
			if of.mark == on {
				return of.execID
			}
		}
	}
	return ""
}
