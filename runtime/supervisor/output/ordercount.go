package output

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// came takes note of a token of lane i that was fetched. It tells whether it is the
// only one that is not counted.
func (x *ordered) came(i int) bool {
	n := x.fresh.len()
	if n > 0 && x.fresh.at(n-1).lane == i {
		x.fresh.at(n-1).n++
	} else {
		x.fresh.push(tokens{i, 1})
	}
	return n == 0
}

// count decides which of the tokens count that were fetched.
func (x *ordered) count() {
	for x.fresh.len() > 0 {
		if done := x.countSome(); x.fresh.len() > 0 { // else they were forgotten
			if x.fresh.at(0).n -= done; x.fresh.at(0).n == 0 {
				x.fresh.pop()
			}
		}
		for i := range x.lanes {
			x.lanes[i].mark = x.lanes[i].drained
		}
	}
}

// countSome decides of the oldest token, or of several that came one after the other
// from the same lane. It returns of how many.
func (x *ordered) countSome() int {
	t := *x.fresh.at(0)
	l := &x.lanes[t.lane]
	if l.debt {
		if l.debt = false; time.Since(l.since) < debtEnds {
			return 1
		}
	}
	if other := &x.lanes[1-t.lane]; other.guessed {
		other.blocked, other.guessed = false, false
	}
	full := l.expected >= l.read+l.slots
	unsure := l.expected+1 == l.read+l.slots && l.expected >= l.mark
	if full || unsure && !isFull(l.fd) {
		x.interrupted = x.interrupted || l.blocked || t.n > 1
		l.blocked, l.guessed = true, false
		l.filled++
		if l.leftKnown = full; full {
			l.left = bytesIn(l.fd)
		}
		return t.n
	}
	if l.blocked && l.leftKnown && bytesIn(l.fd) <= l.left {
		return t.n // it was interrupted
	}
	l.leftKnown = false
	if unsure {
		// There was room for one packet and it is there, so one of these tokens counts.
		if x.settle(); x.fresh.len() == 0 {
			return 0
		}
		t = *x.fresh.at(0)
	} else {
		t.n = 1
	}
	l.blocked, l.guessed = t.n > 1, t.n > 1
	l.expected++
	l.waiting++
	if k := x.runs.len(); k > 0 && x.runs.at(k-1).lane == t.lane {
		x.runs.at(k-1).n++
	} else {
		x.runs.push(tokens{t.lane, 1})
	}
	return t.n
}

// settle waits for what a writer is about to tell.
func (x *ordered) settle() {
	for range settles {
		x.seq.fetchAll()
	}
}

// forget drops all tokens, when some were lost.
func (x *ordered) forget() {
	x.runs.clear()
	x.fresh.clear()
	for i := range x.lanes {
		l := &x.lanes[i]
		l.expected, l.waiting, l.mark = l.read, 0, l.read+l.slots
		l.debt, l.blocked, l.guessed = false, false, false
	}
}

// isFull tells whether a pipe has no room for one more packet. Only its other end
// knows, so that is opened for a moment.
func isFull(fd int) bool {
	end, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer func() { _ = unix.Close(end) }()
	poll := []unix.PollFd{{Fd: int32(end), Events: unix.POLLOUT}}
	n, err := unix.Poll(poll, 0)
	return err != nil || n == 0
}
