package supervisor

import (
	"bytes"
	"hash/fnv"
	"os"
	"strconv"

	"github.com/agbox/agbox/runtime/supervisor/agents"
)

// activityOf returns what the processes of an exec do.
func (s *Supervisor) activityOf(execID string) (a agents.Activity) {
	a.Stopped = true
	e, _ := s.registry.get(execID)
	if e == nil {
		return a
	}
	ch := s.registry.childOf(e)
	if ch == nil {
		return a
	}
	t := &tree{leader: ch.pid, mark: ch.mark, marker: markerVariable + "=" + e.id, known: make(map[key]bool)}
	s.look.do(func() {
		for _, p := range t.look(true) {
			state, work := workOf(p.pid)
			a.Stopped = a.Stopped && (state == 'T' || state == 't')
			a.Work += work // in any order
		}
	})
	return a
}

// workOf returns the state of a process and a number that changes when the process uses the
// processor, reads or writes, or waits for a child. For a process of another user the kernel
// tells about the processor only.
func workOf(pid int) (state byte, work uint64) {
	dir := "/proc/" + strconv.Itoa(pid)
	raw, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 'X', 0
	}
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	const firstTime, lastTime, start = 11, 14, 19 // utime, stime, cutime, cstime; proc_pid_stat(5)
	if len(f) <= start {
		return 'X', 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(dir))
	for _, field := range append(f[firstTime:lastTime+1:lastTime+1], f[start]) {
		_, _ = h.Write(field)
		_, _ = h.Write([]byte{' '})
	}
	io, _ := os.ReadFile(dir + "/io")
	_, _ = h.Write(io)
	return f[0][0], h.Sum64()
}
