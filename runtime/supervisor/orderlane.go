package supervisor

import (
	"errors"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

const (
	// linesPipe is what a pipe is enlarged to that was full of packets of any size,
	// in bytes: 64 packets.
	linesPipe = 256 << 10
	// fillPackets is how many packets of a lane are read ahead in a step.
	fillPackets = 32
	// matchPackets is how many are read one by one in a step.
	matchPackets = 256
	// looks is how often the sequencer looks for a token that would end a doubt:
	// about ten microseconds, long enough for a running writer to send it.
	looks = 64
)

// lane is one pipe of an ordered exec. The kernel queues a token for each write,
// but also one, in vain, when a writer finds the pipe full: such a token has no
// packet and must not be taken for one that has. As the packets in the pipe are
// known by number, so is when it is full: a token that comes when all slots are
// taken is in vain. Only the first one after a packet was taken out of a full pipe
// may have been sent before or after that, which makes the lane unsure. Mostly the
// next token tells; else the packets are counted when all have been read.
type lane struct {
	fd int
	// slots is how many packets the pipe holds.
	slots uint64
	// asked is the size that the pipe was to be enlarged to.
	asked uint64

	// expected counts the packets of which it is known that they were written,
	// read those that were taken out of the pipe.
	expected, read uint64
	// drained is read+slots at the last look for tokens, mark at the look before the
	// one that brought the exec's last token. The pipe has not been full since that
	// token was sent if expected is less.
	drained, mark uint64
	// blocked is true when the last token was in vain, so that its writer waits and
	// its next token counts; not if the writer polls. maybe is true when it was that
	// one or the one before: then the writer waits if it sends no other.
	blocked, polls, maybe bool
	// full is true once the pipe was.
	full bool
	// debt is true when a packet has come before its token and was not held back;
	// since is when.
	debt  bool
	since time.Time
	// waiting counts the tokens in runs.
	waiting int
	// unsure is true when one token of the run number suspect, or of this lane
	// directly after it, may be in vain. There are such when followed is true. settle
	// is true when tokens of the other lane have come since, so that it matters.
	unsure, followed, settle bool
	suspect                  uint64

	// packets are the lengths of the packets that wait in the batch's buffer
	// between start and end.
	packets    queue[int]
	start, end int
	// pages is how many packets in the pipe are known to be full pages.
	pages int
	// page is true when the last packet that was read was one; whole, when the last
	// that was passed on was, so that the next may belong to the same write.
	page, whole bool
	// empty is true when the last read found nothing, ended when it found the end.
	empty, ended bool
	// emptied is came when the pipe was empty.
	emptied uint64
}

// token takes note of a token of lane i.
func (x *ordered) token(i int) {
	l := &x.lanes[i]
	x.came++
	defer x.markLanes()
	either := x.either
	x.either, x.lanes[0].maybe, x.lanes[1].maybe = false, false, false
	if l.debt {
		if l.debt = false; time.Since(l.since) < debtEnds {
			return
		}
	}
	inVain := l.expected >= l.read+l.slots
	doubtful := l.expected >= l.mark && (!l.blocked || l.polls)
	if doubtful && l.expected+1 == l.read+l.slots {
		// If it counts, the pipe is full again.
		inVain, doubtful = !isFull(l.fd), false
		x.either = !inVain
	}
	if inVain {
		l.full = true
		l.polls = l.blocked
		l.maybe = either || l.unsure
		l.blocked = !l.maybe
		l.unsure, l.settle = false, false // it was this one, or one directly before
		return
	}
	if other := &x.lanes[1-i]; other.unsure {
		if other.followed || other.polls {
			other.settle = true
		} else {
			other.unsure = false // the writer did not wait
		}
	}
	x.accept(i, doubtful)
}

// accept puts a token into the queue; it may be in vain if it is doubtful.
func (x *ordered) accept(i int, doubtful bool) {
	l := &x.lanes[i]
	l.expected++
	l.waiting++
	l.blocked = false
	if n := x.runs.len(); n > 0 && x.runs.at(n-1).lane == i {
		x.runs.at(n-1).n++
	} else {
		x.runs.push(tokens{i, 1})
	}
	switch {
	case l.unsure:
		l.followed = true
	case doubtful:
		l.unsure, l.followed, l.settle = true, false, false
		l.suspect = x.first + uint64(x.runs.len()) - 1
	}
}

func (x *ordered) markLanes() {
	for j := range x.lanes {
		x.lanes[j].mark = x.lanes[j].drained
	}
}

// forget drops all tokens, when some were lost.
func (x *ordered) forget() {
	for x.runs.len() > 0 {
		x.popRun()
	}
	for i := range x.lanes {
		l := &x.lanes[i]
		l.expected, l.waiting = l.read, 0
		l.debt, l.unsure, l.settle, l.blocked = false, false, false, false
	}
	x.either = false
}

// step moves what is in the pipes into a batch. It returns true when there may be
// more to do at once.
func (x *ordered) step() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.abandoned {
		x.lanes[0].ended, x.lanes[1].ended = true, true
		x.closeEnded()
		return false
	}
	if x.batches == inFlight {
		x.stalled = true
		return false
	}
	for i := range x.lanes {
		x.fill(i)
	}
	x.look()
	for i := range x.lanes {
		if x.lanes[i].unsure {
			x.count(i)
		}
	}
	more := x.match()
	for i := range x.lanes {
		l := &x.lanes[i]
		x.grow(l)
		more = more || !l.empty && !l.ended
	}
	x.send()
	if !more {
		x.closeEnded()
	}
	return more
}

// closeEnded closes the pipes that have ended, and after the second one the exec.
func (x *ordered) closeEnded() {
	for i := range x.lanes {
		if l := &x.lanes[i]; l.ended && l.fd >= 0 {
			x.seq.remove(l.fd)
			if l.fd = -1; x.lanes[1-i].fd < 0 {
				close(x.out)
			}
		}
	}
}

// look takes all tokens there are. Those that were sent before the last read are
// known afterwards.
func (x *ordered) look() {
	x.seq.drain()
	for i := range x.lanes {
		x.lanes[i].drained = x.lanes[i].read + x.lanes[i].slots
	}
}

// fill reads packets of lane i ahead.
func (x *ordered) fill(i int) {
	for range fillPackets {
		if !x.readPacket(i) {
			return
		}
	}
}

// readPacket reads a packet of lane i, or several if they are known to be pages.
// It looks for tokens before, so that never more than one packet is taken between
// two looks.
func (x *ordered) readPacket(i int) bool {
	l := &x.lanes[i]
	if l.ended {
		return false
	}
	x.look()
	x.hesitate(l)
	if !x.room(i) {
		l.empty = false
		return false
	}
	buf := (*x.batch.bufs[i])[l.end:]
	if x.readPages(i, buf) {
		return true
	}
	n, err := readNow(l.fd, buf)
	if l.empty = errors.Is(err, unix.EAGAIN); l.empty {
		l.emptied = x.came
		return false
	}
	if err != nil || n == 0 {
		l.ended = true
		return false
	}
	x.took(i, n)
	return true
}

// hesitate gives the writer time for a token that after the next read could no
// longer be told apart: the one it sends when it finds the pipe full.
func (x *ordered) hesitate(l *lane) {
	for range looks {
		full := l.expected >= l.read+l.slots && !l.blocked
		if !full && (!l.unsure || l.followed || l.settle) {
			return
		}
		x.look()
	}
	if l.maybe {
		l.blocked, l.maybe = true, false
	}
}

// took notes a packet that was read.
func (x *ordered) took(i, n int) {
	l := &x.lanes[i]
	l.end += n
	l.read++
	l.page = n == packetSize
	l.packets.push(n)
	x.taken[i] += uint64(n)
}

// readPages reads many packets at once. That a pipe holds as many bytes as it has
// room for says that all its packets are full pages. It is what a program does
// that writes much, and it is woken only once for all of them.
func (x *ordered) readPages(i int, buf []byte) bool {
	l := &x.lanes[i]
	if l.pages == 0 && l.page {
		if n, err := unix.IoctlGetInt(l.fd, unix.TIOCINQ); err == nil && uint64(n) == l.slots*packetSize {
			l.pages = int(l.slots)
		}
	}
	want := min(l.pages, len(buf)/packetSize)
	if want < 2 {
		l.pages = max(l.pages-1, 0)
		return false
	}
	iov := unix.Iovec{Base: unsafe.SliceData(buf)}
	iov.SetLen(want * packetSize)
	n, err := unix.Vmsplice(l.fd, []unix.Iovec{iov}, unix.SPLICE_F_NONBLOCK)
	if err != nil || n < packetSize {
		l.pages = 0
		return false
	}
	l.pages -= n / packetSize
	for ; n > 0; n -= packetSize {
		x.took(i, min(n, packetSize))
	}
	return true
}

// room sees to it that a packet fits into the batch.
func (x *ordered) room(i int) bool {
	if x.batch == nil {
		x.batch = batches.Get().(*batch)
	}
	b := x.batch
	if b.bufs[i] == nil {
		b.bufs[i] = buffers.Get().(*[]byte)
	}
	return len(*b.bufs[i])-x.lanes[i].end >= packetSize
}

// readNow reads without waiting, and without telling the runtime, which would
// prepare for a wait.
func readNow(fd int, buf []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// match passes on the packets in the order of the tokens, then those that have no
// token yet. It returns true if there are tokens left.
func (x *ordered) match() bool {
	for reads := matchPackets; ; {
		if x.matchTokens(&reads) {
			return true
		}
		if x.lanes[0].packets.len()+x.lanes[1].packets.len() == 0 {
			return false
		}
		if x.look(); x.runs.len() == 0 && !x.tokenComes() {
			break
		}
	}
	for i := range x.lanes {
		x.passRest(i)
	}
	return false
}

// tokenComes waits for the token of a packet that may also be the end of a write
// of more than a page, which has none. One more packet is sure to be.
func (x *ordered) tokenComes() bool {
	if !x.lanes[0].mayGoOn() && !x.lanes[1].mayGoOn() {
		return false
	}
	for range looks {
		if x.look(); x.runs.len() > 0 {
			return true
		}
	}
	return false
}

func (l *lane) mayGoOn() bool { return l.whole && l.packets.len() == 1 }

// matchTokens passes on the packets whose tokens have come. It returns true if it
// has to leave some; reads is how many packets it may still read.
func (x *ordered) matchTokens(reads *int) bool {
	for x.runs.len() > 0 {
		for i := range x.lanes {
			if x.lanes[i].settle {
				x.settle(i)
			}
		}
		i := x.runs.at(0).lane
		l := &x.lanes[i]
		if x.runs.at(0).n == 0 {
			x.popRun()
			continue
		}
		if l.packets.len() == 0 {
			// One, because what comes after it must not overtake the other stream.
			if *reads--; *reads < 0 {
				return true
			}
			if !x.readPacket(i) && !l.empty && !l.ended {
				return true // the batch is full
			}
			if x.lanes[0].settle || x.lanes[1].settle || x.runs.len() == 0 || x.runs.at(0).lane != i || x.runs.at(0).n == 0 {
				continue // the look for tokens before the read has changed them
			}
		}
		x.runs.at(0).n--
		l.waiting--
		if l.packets.len() == 0 {
			l.expected-- // in vain after all
			l.unsure, l.settle = false, false
			continue
		}
		x.pass(i)
		// Pages that are more than the tokens can explain are of the same write; for
		// one packet the token may still be under way.
		for l.whole && l.packets.len() > l.waiting+1 {
			l.expected++
			x.pass(i)
		}
	}
	return false
}

func (x *ordered) popRun() {
	x.runs.pop()
	x.first++
}

// passRest passes on packets whose tokens have not come. They were written after
// all those whose tokens have.
func (x *ordered) passRest(i int) {
	l := &x.lanes[i]
	for l.packets.len() > 0 {
		if !l.whole {
			l.debt, l.since = true, time.Now()
		}
		l.expected++
		x.pass(i)
	}
	if !l.unsure {
		l.expected = l.read
	}
}

// pass puts the next packet of a lane behind what is in the batch.
func (x *ordered) pass(i int) {
	l := &x.lanes[i]
	n := *l.packets.at(0)
	l.packets.pop()
	l.whole = n == packetSize
	b := x.batch
	if k := len(b.runs); k > 0 && b.runs[k-1].Stream == streamOf[i] {
		b.runs[k-1].Length += n
	} else {
		b.runs = append(b.runs, logs.Run{Stream: streamOf[i], Length: n})
	}
	l.start += n
	b.ends[i] = l.start
}

// send hands the batch over to run. Packets that were not passed on move to the next.
func (x *ordered) send() {
	b := x.batch
	if b == nil {
		return
	}
	if len(b.runs) == 0 {
		if x.lanes[0].end+x.lanes[1].end == 0 {
			x.batch = nil
			b.release()
		}
		return
	}
	x.batch = nil
	for i := range x.lanes {
		l := &x.lanes[i]
		rest := 0
		if l.start < l.end {
			x.room(i)
			rest = copy(*x.batch.bufs[i], (*b.bufs[i])[l.start:l.end])
		}
		l.start, l.end = 0, rest
	}
	b.at = time.Now()
	x.batches++
	x.out <- b
}

// settle ends the doubt about a token before those of the other lane are used.
// Where counting does not tell, the writer has paused after one that counts.
func (x *ordered) settle(i int) {
	l := &x.lanes[i]
	for range looks {
		x.fill(i)
		x.look()
		if x.count(i) || !l.settle {
			return
		}
	}
	l.unsure, l.settle = false, false
}

// count ends the doubt about a token if the packets tell: no token has come since
// they were read, so they are fewer than the tokens if one is in vain, and more if
// none is and the writer is between a packet and its token.
func (x *ordered) count(i int) bool {
	l := &x.lanes[i]
	if !l.empty || l.emptied != x.came || l.read == l.expected {
		return false
	}
	if l.read < l.expected {
		x.vain(i)
	}
	l.unsure, l.settle = false, false
	return true
}

// vain takes back a token, as near to where the doubt began as there is one.
func (x *ordered) vain(i int) {
	l := &x.lanes[i]
	l.unsure, l.settle = false, false
	for at := max(l.suspect, x.first) - x.first; at < uint64(x.runs.len()); at++ {
		if r := x.runs.at(int(at)); r.lane == i && r.n > 0 {
			r.n--
			l.waiting--
			l.expected--
			return
		}
	}
}

// grow enlarges a pipe that was full: to some extent for many writes, to more for
// much output.
func (x *ordered) grow(l *lane) {
	size := uint64(0)
	switch {
	case l.fd < 0:
	case l.pages > 0:
		size = fullPipe
	case l.full:
		size = linesPipe
	}
	if l.full = false; size <= l.asked {
		return
	}
	l.asked = size
	x.look()
	if _, err := unix.FcntlInt(uintptr(l.fd), unix.F_SETPIPE_SZ, int(size)); err == nil {
		l.slots, l.pages = slotsOf(l.fd), 0
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

// slotsOf returns how many packets a pipe holds.
func slotsOf(fd int) uint64 {
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		size = firstPipe
	}
	return uint64(max(size/os.Getpagesize(), 1))
}
