package supervisor

import (
	"hash/fnv"
	"strconv"

	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
)

// activityOf returns what the processes of an exec do.
func (s *Supervisor) activityOf(execID string) (a agentsocket.Activity) {
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
	var stat [statSize]byte
	f, ok := fieldsOfStat(readProc(pid, "stat", stat[:]))
	if !ok {
		return 'X', 0
	}
	h := fnv.New64a()
	_, _ = h.Write(strconv.AppendInt(nil, int64(pid), 10))
	for _, i := range [...]int{statUserTime, statSystemTime, statReapedUser, statReapedTime, statStart} {
		_, _ = h.Write([]byte{' '})
		_, _ = h.Write(f[i])
	}
	var io [ioSize]byte
	_, _ = h.Write(readProc(pid, "io", io[:]))
	return f[statState][0], h.Sum64()
}

// ioSize is more than /proc/PID/io has: seven names and numbers.
const ioSize = 512
