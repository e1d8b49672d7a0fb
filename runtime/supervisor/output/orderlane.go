package output

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// linesPipe is what a pipe is enlarged to that was full of packets of any size,
	// in bytes: 64 packets.
	linesPipe = 256 << 10
	// fillPackets is how many packets of a lane are read ahead at once.
	fillPackets = 32
	// stepPackets is about how many packets are passed on in one step.
	stepPackets = 512
	// manyPages is more than the packets in a pipe can be whose tokens have not come,
	// or just one of them, when no write is longer than a page.
	manyPages = 4
	// looks is how often the sequencer looks for a token that it would not be sure of
	// later: about ten microseconds, long enough for a running writer to send it.
	looks = 64
	// settles is how often it looks before it takes a second packet out of a pipe that
	// was full: about two microseconds, long enough for a writer that a signal
	// interrupted to send a token.
	settles = 16
	// oftenFull is how often a pipe must have been full before it is enlarged while its
	// own writer waits; by then it is known whether signals interrupt that.
	oftenFull = 8
	// patience is how long a pipe is left as it is whose writer may have found it full,
	// but has not said so, because it gets no processor or because it did not.
	patience = 20 * time.Millisecond
)

// lane is one pipe of an ordered exec.
//
// The kernel queues a token for each write, but also one, in vain, when a writer
// finds the pipe full: such a token has no packet and must not be taken for one
// that has. A writer that a signal interrupts while it waits for room sends another
// one then, and one more when it finds the pipe still full. As the packets in the
// pipe are known by number, so is when it is full: a token that comes when all slots
// are taken is in vain. But after a packet was taken out of a full pipe, a token may
// have been sent before that, in vain, or after it. Then the pipe itself tells: if
// it is not full again, the token was in vain; if it is, then of the tokens that its
// writer sent in a row exactly one counts. That is why tokens are looked for before
// each read, why a pipe that has become full is not read at once, and why the second
// packet is not taken out of it as quickly as could be.
type lane struct {
	fd int
	// slots is how many packets the pipe holds; asked is the size in bytes that it had
	// at first, or was to be enlarged to.
	slots, asked uint64

	// expected counts the packets of which it is known that they were written,
	// read those that were taken out of the pipe.
	expected, read uint64
	// drained is read+slots at the last look for tokens, mark at the look before the
	// one that brought the exec's last token. The pipe has not been full since that
	// token was sent if expected is less.
	drained, mark uint64
	// blocked is true when the last token was in vain: its writer has found the pipe
	// full. It is guessed when it is not known which of some tokens were in vain, and
	// then only believed until the writer is seen at the other pipe.
	blocked, guessed bool
	// filled is how often a writer has found the pipe full.
	filled int
	// left is how many bytes were in the pipe when it was last known to be full, less
	// those that were read since. It is known while the writer is known to wait.
	left      int
	leftKnown bool
	// debt is true when a packet has come before its token and was not held back;
	// since is when.
	debt  bool
	since time.Time
	// waiting counts the tokens in runs.
	waiting int

	// packets are the lengths of the packets that wait in the batch's buffer
	// between start and end.
	packets    queue[int]
	start, end int
	// pages is how many packets in the pipe are known to be full pages.
	pages int
	// bulk is true when the last packets were read as pages: then there is no doubt
	// worth any time.
	bulk bool
	// page is true when the last packet that was read was one; whole, when the last
	// that was passed on was, so that the next may belong to the same write.
	page, whole bool
	// empty is true when the last read found nothing, ended when it found the end.
	empty, ended bool
	// held is true while the pipe is not read, because its writer may be about to say
	// that it found it full; since heldSince.
	held      bool
	heldSince time.Time
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
	more := x.match()
	for i := range x.lanes {
		more = more || !x.lanes[i].empty && !x.lanes[i].ended && !x.lanes[i].held
	}
	x.send()
	x.noMoreThanTaken()
	if !more {
		x.closeEnded()
	}
	return more
}

// noMoreThanTaken lets drain not wait for what it has seen in a pipe that is empty
// now: a process has read its own output.
func (x *ordered) noMoreThanTaken() {
	for i := range x.lanes {
		if x.lanes[i].empty || x.lanes[i].ended {
			x.goal[i] = min(x.goal[i], x.taken[i])
		}
	}
	x.wakeLocked()
}

// closeEnded closes the pipes that have ended, and after the second one the exec.
func (x *ordered) closeEnded() {
	for i := range x.lanes {
		if l := &x.lanes[i]; l.ended && l.fd >= 0 {
			x.seq.remove(l.fd)
			if l.fd = -1; x.lanes[1-i].fd < 0 {
				x.again.Stop()
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
	if x.hold(i); l.held {
		l.empty = false
		return false
	}
	x.grow(i)
	if !x.room(i) {
		l.empty = false
		return false
	}
	buf := (*x.batch.bufs[i])[l.end:]
	if x.readPages(i, buf) {
		return true
	}
	full := l.expected >= l.read+l.slots
	n, err := readNow(l.fd, buf)
	if l.empty = errors.Is(err, unix.EAGAIN); l.empty {
		return false
	}
	if err != nil || n == 0 {
		l.ended = true
		return false
	}
	x.took(i, n)
	if full {
		x.settle()
	}
	return true
}

// hold decides whether a pipe is left as it is for now, because its writer may have
// found it full without having said so. What it says after the next read could not be
// told from a write. It is known to be elsewhere when it waits for the other pipe, and
// when a drain is called for, because then the process has ended.
func (x *ordered) hold(i int) {
	l := &x.lanes[i]
	for range looks {
		known := l.blocked && !l.guessed || x.lanes[1-i].blocked && !x.lanes[1-i].guessed
		if l.held = l.expected >= l.mark && !known && !l.bulk && x.waiter == nil; !l.held {
			l.heldSince = time.Time{}
			return
		}
		x.look()
	}
	if l.guessed { // long enough
		l.held, l.guessed = false, false
		l.left, l.leftKnown = bytesIn(l.fd), l.expected == l.read+l.slots
		return
	}
	if l.heldSince.IsZero() {
		l.heldSince = time.Now()
		x.again.Reset(patience)
	}
	l.held = time.Since(l.heldSince) < patience
}

// took notes a packet that was read.
func (x *ordered) took(i, n int) {
	l := &x.lanes[i]
	l.end += n
	l.left -= n
	l.read++
	if l.page = n == packetSize; !l.page {
		l.bulk = false
	}
	l.packets.push(n)
	x.taken[i] += uint64(n)
}

// readPages reads many packets at once that are full pages, as a program writes
// them that writes much. They are if the pipe holds as many bytes as it has room
// for, or more than the tokens explain.
func (x *ordered) readPages(i int, buf []byte) bool {
	l := &x.lanes[i]
	if l.pages == 0 && l.page {
		n := bytesIn(l.fd)
		x.look() // afterwards, so that of the tokens at most one is missing
		if l.pages = n / packetSize; uint64(l.pages) < l.slots && (l.pages < manyPages || l.waiting-l.packets.len() > 1) {
			l.pages = 0
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
	if err != nil || n <= 0 {
		l.pages = 0
		return false
	}
	l.pages -= (n + packetSize - 1) / packetSize
	l.bulk = true
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

// grow enlarges a pipe that was full: to some extent for many writes, to more for
// much output. For many writes that is done while the writer waits, best for the other
// pipe: then no token is under way that would tell of the old size. While it waits for
// this one a signal may have it send some, in vain, so one that was interrupted is left
// alone, and what came before there is more in the pipe counts by the old size.
func (x *ordered) grow(i int) {
	l, other := &x.lanes[i], &x.lanes[1-i]
	size := uint64(0)
	switch {
	case l.pages > 0:
		size = fullPipe
	case l.filled > 0 && other.waits(), l.filled >= oftenFull && l.waits() && !x.interrupted:
		size = linesPipe
	}
	if size <= l.asked {
		return
	}
	l.asked = size
	before := bytesIn(l.fd)
	if _, err := unix.FcntlInt(uintptr(l.fd), unix.F_SETPIPE_SZ, int(size)); err != nil {
		return
	}
	x.seq.fetchAll()
	if bytesIn(l.fd) == before {
		x.count()
	}
	l.slots = slotsOf(l.fd)
}

// bytesIn returns how many bytes a pipe holds.
func bytesIn(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.TIOCINQ) // of a pipe it is always known
	return n
}

// waits tells whether the writer is known to wait for room.
func (l *lane) waits() bool {
	return l.blocked && !l.guessed && l.expected == l.read+l.slots
}

// slotsOf returns how many packets a pipe holds.
func slotsOf(fd int) uint64 {
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		size = firstPipe
	}
	return uint64(max(size/packetSize, 1))
}
