package supervisor

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// maxAncestors is how far the ancestors of a caller are searched for one that belongs to
// an exec.
const maxAncestors = 128

// callerOf returns the exec to which the process belongs that has made a connection, or ""
// if it is of none. known is false if the kernel does not say who has made it: gVisor names
// the supervisor itself for every peer.
func (s *Supervisor) callerOf(c *net.UnixConn) (execID string, known bool) {
	pid, pidfd, err := peerOf(c)
	if pidfd >= 0 {
		defer func() { _ = unix.Close(pidfd) }()
	}
	switch {
	case err != nil:
		return "", true
	case pid == os.Getpid():
		return "", false
	}
	s.callers.do(func() { execID = s.children.execOfPeer(pid, pidfd) })
	return execID, true
}

// execOfPeer is execOf for the process of pidfd, which had that pid when it connected; "" if it
// has ended.
func (c *children) execOfPeer(pid, pidfd int) string {
	execID := c.execOf(pid)
	// Before this, the process may have ended and another one have its pid.
	if pidfd >= 0 && errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.ESRCH) {
		return ""
	}
	return execID
}

// peerOf returns the pid of the process that has made a connection, and a descriptor of that
// process, or -1 on kernels before 6.5. The process may have ended.
func peerOf(c *net.UnixConn) (pid, pidfd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, -1, err
	}
	pidfd = -1
	if failed := raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		pid = int(peer.Pid)
		got, problem := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		switch {
		case problem == nil:
			pidfd = got
		case errors.Is(problem, unix.ESRCH): // it has ended and was reaped
			err = problem
		}
	}); failed != nil {
		err = failed
	}
	return pid, pidfd, err
}

// execOf returns the exec to which a process belongs, or "". Its session, process group and
// ancestors prove it: a process enters a session only by its birth, changes its group only
// within its session, and does not choose its parent. Only of a daemon, which has none of
// the three left, the mark decides. Nothing is asked that a process can change as it likes,
// such as its environment.
func (c *children) execOf(pid int) (execID string) {
	buf := make([]byte, statSize)
	first, _, ok := readStat(pid, buf)
	if !ok {
		return ""
	}
	for range 3 { // a parent that ends while the list is read breaks it
		if execID, ok = c.execAbove(first, buf); ok {
			break
		}
		now, _, living := readStat(pid, buf)
		if !living || now.start != first.start {
			return ""
		}
		first = now
	}
	if now, _, living := readStat(pid, buf); !living || now.start != first.start {
		return ""
	}
	return execID
}

// execAbove looks at a process and its ancestors, up to a child of this process. ok is false
// if an ancestor is missing.
func (c *children) execAbove(p proc, buf []byte) (execID string, ok bool) {
	self := os.Getpid()
	for range maxAncestors {
		if id := c.execLedBy(p.pid, p.session, p.group); id != "" {
			return id, true
		}
		switch p.parent {
		case 0: // from outside of the container
			return "", true
		case self:
			return c.execMarked(markOf(p.pid)), true
		}
		if p, _, ok = readStat(p.parent, buf); !ok {
			return "", false
		}
	}
	return "", true
}

// execLedBy returns the exec of the first child that has one of the pids. The kernel gives
// the number of a session or group to no other process as long as that has members.
func (c *children) execLedBy(pids ...int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pid := range pids {
		if ch := c.live[pid]; ch != nil {
			return ch.execID
		}
	}
	return ""
}

// execMarked returns the exec of the child with that mark.
func (c *children) execMarked(m mark) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.live {
		if ch.mark != 0 && ch.mark == m {
			return ch.execID
		}
	}
	return ""
}
