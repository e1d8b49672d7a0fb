package output

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

// packetSize is the most that one packet of a pipe holds: a page, which not every
// kernel has of 4 KiB. A longer write becomes several packets, all but the last of
// this size. What of a packet has no room in a read is lost.
var packetSize = os.Getpagesize()

const (
	// inFlight is how many batches of an exec may wait for the disk. Then its pipes
	// are left to fill, and the process waits.
	inFlight = 2
	// debtEnds is when a token that has not come for a packet is no longer expected. Its
	// writer got no processor between the two: of three writers on two processors with
	// twelve others each did once for a tenth of a second.
	debtEnds = 10 * time.Second
)

// ordered moves both outputs of an exec into its log in the order in which they
// were written. The sequencer reads the pipes and says the order; run writes.
//
// The pipes are in packet mode: one write is one packet, one read takes one
// packet. For each write the kernel also queues a signal, here called a token,
// that names its pipe. The tokens of both pipes are in one queue, so they are the
// order, and the packets of each pipe are what it is the order of. A token comes
// after its packet. A program that writes from one thread has at most one packet
// whose token is still to come, and that packet is then the last one written.
type ordered struct {
	seq    *sequencer
	writer *logs.Writer
	disk   Gate
	// child are the ends that the process gets.
	child [2]*os.File
	// out holds what is to be written; closed after the last batch. Its room is
	// inFlight, and no more are ever made at once, so that sending never waits.
	out chan *batch

	// mu guards the fields below.
	// Held across I/O: what is in the pipes and what was taken out of them must be seen
	// at one moment. The reads never wait.
	mu sync.Mutex
	// lanes[i].fd is -1 once it is closed.
	lanes [2]lane
	// taken counts the bytes that were read, kept those given to the log.
	taken, kept [2]uint64
	// batches counts those that are not yet written.
	batches int
	// stalled is true when the sequencer waits for a batch to be written.
	stalled bool
	// abandoned is true once nobody wants the output any more.
	abandoned bool
	// ended is true when everything is in the log and nothing more comes.
	ended bool
	// waiter is closed when kept reaches goal, or at the end; nil if nobody waits.
	waiter chan struct{}
	goal   [2]uint64

	// The sequencer's thread alone uses what follows, and the lanes but for fd.

	// runs are the tokens that have not met their packet, oldest first.
	runs queue[tokens]
	// fresh are tokens that were fetched and not yet counted, oldest first.
	fresh queue[tokens]
	// interrupted is true once a writer has found a pipe full several times in a row.
	interrupted bool
	// again has the exec looked at when a pipe has been held for long.
	again *time.Timer
	// ready is true while the exec is in the sequencer's list.
	ready bool
	batch *batch
}

// tokens are consecutive tokens of one pipe.
type tokens struct{ lane, n int }

// batch is output on its way into the log.
type batch struct {
	at time.Time
	// bufs hold the output of each lane; nil if there is none.
	bufs [2]*[]byte
	// ends are where the output ends that is in runs.
	ends [2]int
	runs []logs.Run
}

var streamOf = [2]logs.Stream{logs.Stdout, logs.Stderr}

// run writes batches until nobody has an output open any more.
func (x *ordered) run() {
	for b := range x.out {
		x.write(b)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	x.wakeLocked()
}

func (x *ordered) write(b *batch) {
	var data [2][]byte
	for i, buf := range b.bufs {
		if buf != nil {
			data[i] = (*buf)[:b.ends[i]]
		}
	}
	x.disk(func() { x.writer.WriteRuns(b.at, data[0], data[1], b.runs) })
	b.release()
	x.mu.Lock()
	x.kept[0] += uint64(len(data[0]))
	x.kept[1] += uint64(len(data[1]))
	x.batches--
	stalled := x.stalled
	x.stalled = false
	x.wakeLocked()
	x.mu.Unlock()
	if stalled {
		x.seq.look(x)
	}
}

func (b *batch) release() {
	for i, buf := range b.bufs {
		if buf != nil {
			buffers.Put(buf)
			b.bufs[i] = nil
		}
	}
	b.ends, b.runs = [2]int{}, b.runs[:0]
	batches.Put(b)
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func (x *ordered) wakeLocked() {
	if x.waiter != nil && (x.ended || x.kept[0] >= x.goal[0] && x.kept[1] >= x.goal[1]) {
		close(x.waiter)
		x.waiter = nil
	}
}

// drain returns when everything that was written before the call is in the log,
// however long somebody else keeps the pipes open. Only one caller at a time.
func (x *ordered) drain() {
	x.mu.Lock()
	x.goal = x.taken
	for i := range x.lanes {
		if fd := x.lanes[i].fd; fd >= 0 {
			inside, _ := unix.IoctlGetInt(fd, unix.TIOCINQ)
			x.goal[i] += uint64(max(inside, 0))
		}
	}
	waiter := make(chan struct{})
	x.waiter = waiter
	x.wakeLocked()
	waits := x.waiter != nil
	x.mu.Unlock()
	if waits {
		x.seq.look(x) // it is on its way already, unless a token was lost
		<-waiter
	}
}

// Close gives up the outputs: what is written from now on has no reader.
func (x *ordered) Close() error {
	x.mu.Lock()
	open := x.lanes[0].fd >= 0 || x.lanes[1].fd >= 0
	x.abandoned = true
	x.mu.Unlock()
	if open {
		x.seq.look(x)
	}
	return nil
}

// queue is a queue that keeps its memory.
type queue[T any] struct {
	all  []T
	head int
}

func (q *queue[T]) len() int    { return len(q.all) - q.head }
func (q *queue[T]) at(i int) *T { return &q.all[q.head+i] }
func (q *queue[T]) push(v T) {
	if len(q.all) == cap(q.all) && q.head > len(q.all)/2 {
		q.all, q.head = q.all[:copy(q.all, q.all[q.head:])], 0
	}
	q.all = append(q.all, v)
}

func (q *queue[T]) clear() { q.all, q.head = q.all[:0], 0 }

func (q *queue[T]) pop() {
	if q.head++; q.head == len(q.all) {
		q.all, q.head = q.all[:0], 0
	}
}
