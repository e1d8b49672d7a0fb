package output

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

// sequencer reads the pipes of all ordered execs, on a thread of its own that gets
// the tokens. The thread never waits for anything but them, so a disk that hangs
// keeps no exec but those whose output it should take.
type sequencer struct {
	tokens  tokenQueue
	side    *sidePipe
	stopped sync.WaitGroup

	// mu guards the fields below. It is never held across I/O.
	mu sync.Mutex
	// lanes finds the lane of a token by its descriptor.
	lanes map[int32]laneOf
	// woken are execs to look at.
	woken    []*ordered
	stopping bool

	// The thread alone uses what follows.

	// ready are execs that may have something to do.
	ready []*ordered
	ends  bool
}

// laneOf is a lane of an exec.
type laneOf struct {
	exec *ordered
	lane int
}

// startSequencer starts the thread. It fails where the kernel does not give
// tokens as they are needed.
func startSequencer() (*sequencer, error) {
	q := &sequencer{lanes: make(map[int32]laneOf)}
	began := make(chan error)
	q.stopped.Go(func() {
		onThread(func() {
			err := q.begin()
			began <- err
			if err == nil {
				q.run()
				q.tokens.close()
				q.side.close()
			}
		})
	})
	if err := <-began; err != nil {
		q.stopped.Wait()
		return nil, err
	}
	return q, nil
}

// onThread calls f on a thread that ends with it, with the signals that it blocks and its
// user id. It is not the main thread, which does not end, and whose user id is that of the
// process for others: without the capability SYS_RESOURCE, root could not change its limits.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	ended := make(chan struct{})
	go func() { // runs on another thread, because this one is locked
		defer close(ended)
		onThread(f)
	}()
	<-ended
	runtime.UnlockOSThread()
}

// begin prepares the thread and tries whether tokens come.
func (q *sequencer) begin() (err error) {
	if err := q.tokens.open(); err != nil {
		return err
	}
	if q.side, err = newSidePipe(); err != nil {
		q.tokens.close()
		return err
	}
	if err := q.tokens.try(q.side); err != nil {
		q.tokens.close()
		q.side.close()
		return fmt.Errorf("the order of writes is not told: %w", err)
	}
	return nil
}

// stop ends the thread. All execs must have ended.
func (q *sequencer) stop() {
	if q == nil {
		return
	}
	q.mu.Lock()
	q.stopping = true
	q.tokens.interrupt()
	q.mu.Unlock()
	q.stopped.Wait()
}

// open makes the outputs of an exec. The exec is read from now on, and must be run.
func (q *sequencer) open(w *logs.Writer, disk Gate) (*ordered, error) {
	x := &ordered{seq: q, writer: w, disk: disk, out: make(chan *batch, inFlight)}
	var slots [2]int
	for i := range x.pipes {
		read, write, err := q.tokens.pipe()
		if err != nil {
			if i > 0 {
				_, _ = unix.Close(x.pipes[0].fd), x.child[0].Close()
			}
			return nil, err
		}
		x.pipes[i].fd = read
		x.child[i] = os.NewFile(uintptr(write), streamOf[i].String())
		if slots[i] = slotsOf(read); slots[i] > q.side.least {
			slots[i] = resize(read, q.side.least, slots[i])
		}
	}
	x.match = newMatcher(x, packetSize, slots)
	x.again = time.AfterFunc(time.Hour, func() { q.wake(x) })
	x.again.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range x.pipes {
		q.lanes[int32(x.pipes[i].fd)] = laneOf{x, i}
	}
	return x, nil
}

// wake has the thread look at an exec.
func (q *sequencer) wake(x *ordered) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopping {
		q.woken = append(q.woken, x)
		q.tokens.interrupt() // the thread is there until stop
	}
}

// run is the thread.
func (q *sequencer) run() {
	var now []*ordered
	for !q.ends {
		if len(q.ready) == 0 {
			q.tokens.wait()
		}
		q.look()
		now, q.ready = q.ready, now[:0]
		for _, x := range now {
			x.ready = false
		}
		for _, x := range now {
			if x.step() {
				q.add(x)
			}
		}
		clear(now)
	}
}

func (q *sequencer) add(x *ordered) {
	if !x.ready {
		x.ready = true
		q.ready = append(q.ready, x)
	}
}

// look hands out all tokens there are.
func (q *sequencer) look() {
	for {
		infos := q.tokens.fetch()
		if len(infos) > 0 {
			q.handOut(infos)
		}
		if len(infos) < tokensAtOnce {
			return
		}
	}
}

func (q *sequencer) handOut(infos []unix.SignalfdSiginfo) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range infos {
		switch info := &infos[i]; unix.Signal(info.Signo) {
		case tokenSignal:
			if of, ok := q.lanes[info.Fd]; ok && info.Code > 0 { // from the kernel
				of.exec.match.token(of.lane)
				q.add(of.exec)
			}
		case lostSignal:
			for _, of := range q.lanes {
				of.exec.match.lose()
				q.add(of.exec)
			}
		case wakeSignal:
			for _, x := range q.woken {
				x.match.lookAtBoth()
				q.add(x)
			}
			clear(q.woken)
			q.woken, q.ends = q.woken[:0], q.stopping
		}
	}
}

// forget ends the tokens of a pipe that is about to be closed. None is left afterwards
// that could be taken for one of the next pipe of that number.
func (q *sequencer) forget(fd int) {
	disown(fd)
	q.look()
	q.mu.Lock()
	delete(q.lanes, int32(fd))
	unused := len(q.lanes) == 0
	q.mu.Unlock()
	if unused {
		q.side.shrink()
	}
}

const (
	// inFlight is how many batches of an exec may wait for the disk. Then its pipes
	// are left to fill, and the process waits.
	inFlight = 2
	// stepRounds and stepSize bound one step: in rounds of the matcher, and in bytes.
	stepRounds, stepSize = 16, 128 << 10
	// patience is how long a matcher may wait for a token. Its writer may get no
	// processor for tens of milliseconds where several programs share one, or it may not
	// write any more: then the end of its output is late by so much.
	patience = 100 * time.Millisecond
)

// ordered moves both outputs of a command into its log in the order in which they were
// written. The sequencer's thread takes them, and a goroutine that runs run writes them.
type ordered struct {
	seq    *sequencer
	writer *logs.Writer
	disk   Gate
	// child are the ends that the process gets.
	child [2]*os.File
	pipes [2]packetPipe
	// out hands batches from the thread to run; closed after the last. It has room for
	// all that are ever made at once, so that sending never waits.
	out chan *batch

	// mu guards the fields below. It is never held across I/O.
	mu sync.Mutex
	// batches counts those that are not yet written.
	batches int
	// stalled is true when the thread waits for a batch to be written.
	stalled bool
	// abandoned is true once nobody wants the output any more.
	abandoned bool

	// The sequencer's thread alone uses what follows.

	match *matcher
	batch *batch
	// ready is true while the exec is in the sequencer's list.
	ready bool
	// waits is since when the matcher waits; zero if it does not.
	waits time.Time
	// again wakes the sequencer when the matcher has waited for long.
	again *time.Timer
}

// packetPipe is one of the two pipes.
type packetPipe struct {
	progress
	// fd is the reading end; -1 once it is closed. The thread changes it under the lock
	// of progress.
	fd int

	// The sequencer's thread alone uses what follows.

	// aside is how many bytes are in the side pipe.
	aside int
	// atEnd is true when nobody has the other end open.
	atEnd bool
}

// batch is output on its way into the log.
type batch struct {
	at   time.Time
	data [2][]byte
	// ends are where the output ends that is in runs.
	ends [2]int
	runs []logs.Run
}

var batches = sync.Pool{New: func() any { return new(batch) }}

var streamOf = [2]logs.Stream{logs.Stdout, logs.Stderr}

// run writes batches until nobody has an output open any more.
func (x *ordered) run() {
	for b := range x.out {
		x.write(b)
	}
	x.pipes[0].end()
	x.pipes[1].end()
}

func (x *ordered) write(b *batch) {
	x.disk(func() { x.writer.WriteRuns(b.at, b.data[0], b.data[1], b.runs) })
	x.pipes[0].wrote(len(b.data[0]))
	x.pipes[1].wrote(len(b.data[1]))
	b.release()
	x.mu.Lock()
	x.batches--
	stalled := x.stalled
	x.stalled = false
	x.mu.Unlock()
	if stalled {
		x.seq.wake(x)
	}
}

func (b *batch) release() {
	b.data, b.ends, b.runs = [2][]byte{b.data[0][:0], b.data[1][:0]}, [2]int{}, b.runs[:0]
	batches.Put(b)
}

// drain returns when everything that was written before the call is in the log,
// however long somebody else keeps the pipes open. Only one caller at a time.
func (x *ordered) drain() {
	var reached [2]<-chan struct{}
	for i := range x.pipes {
		p := &x.pipes[i]
		reached[i] = p.await(func() int {
			if p.fd < 0 {
				return 0
			}
			return bytesIn(p.fd)
		})
	}
	x.seq.wake(x) // a token may have been lost
	<-reached[0]
	<-reached[1]
}

// Close gives up the outputs: what is written from now on has no reader.
func (x *ordered) Close() error {
	x.mu.Lock()
	x.abandoned = true
	x.mu.Unlock()
	x.seq.wake(x)
	return nil
}

// step moves what is in the pipes into a batch. It returns true when there may be
// more to do at once.
func (x *ordered) step() (more bool) {
	x.mu.Lock()
	abandoned := x.abandoned
	x.stalled = x.batches == inFlight && !abandoned
	stalled := x.stalled
	x.mu.Unlock()
	if stalled || x.closed() {
		return false
	}
	if abandoned {
		x.pipes[0].atEnd, x.pipes[1].atEnd = true, true
		x.closeEnded()
		return false
	}
	if x.batch == nil {
		x.batch = batches.Get().(*batch)
	}
	drains := x.pipes[0].awaited() || x.pipes[1].awaited()
	x.match.hurry = drains || !x.waits.IsZero() && time.Since(x.waits) >= patience
	waits := false
	for range stepRounds {
		if more, waits = x.match.round(); !more || x.batch.ends[0]+x.batch.ends[1] >= stepSize {
			break
		}
	}
	x.send()
	x.wait(waits)
	if !more && !waits {
		x.closeEnded()
	}
	return more
}

// wait sees to it that the matcher does not wait for long.
func (x *ordered) wait(waits bool) {
	if !waits {
		x.waits = time.Time{}
	} else if x.waits.IsZero() {
		x.waits = time.Now()
		x.again.Reset(patience)
	}
}

func (x *ordered) closed() bool { return x.pipes[0].fd < 0 && x.pipes[1].fd < 0 }

// closeEnded closes the pipes that have ended, and after the second one the exec.
func (x *ordered) closeEnded() {
	for i := range x.pipes {
		p := &x.pipes[i]
		if !p.atEnd || p.fd < 0 {
			continue
		}
		x.seq.forget(p.fd)
		p.mu.Lock()
		_ = unix.Close(p.fd)
		p.fd = -1
		p.mu.Unlock()
		if x.closed() {
			x.again.Stop()
			close(x.out)
		}
	}
}

// send hands the batch over to run. What was not passed on moves to the next.
func (x *ordered) send() {
	b := x.batch
	if len(b.runs) == 0 {
		if len(b.data[0])+len(b.data[1]) == 0 {
			x.batch = nil
			b.release()
		}
		return
	}
	x.batch = nil
	for i, end := range b.ends {
		if rest := b.data[i][end:]; len(rest) > 0 {
			if x.batch == nil {
				x.batch = batches.Get().(*batch)
			}
			x.batch.data[i] = append(x.batch.data[i], rest...)
			b.data[i] = b.data[i][:end]
		}
	}
	b.at = time.Now()
	x.mu.Lock()
	x.batches++
	x.mu.Unlock()
	x.out <- b
}

// look has the matcher told of the tokens.
func (x *ordered) look() { x.seq.look() }

// take moves what is in a pipe into the side pipe.
func (x *ordered) take(i int) bool {
	p := &x.pipes[i]
	if p.atEnd {
		return false
	}
	n, err := p.read(func() (int, error) { return x.seq.side.fill(p.fd) })
	p.aside, p.atEnd = n, n == 0 && err == nil
	return n > 0
}

// empty tells whether nothing is in a pipe.
func (x *ordered) empty(i int) bool { return bytesIn(x.pipes[i].fd) == 0 }

// unpack reads the packets from the side pipe.
func (x *ordered) unpack(i int) {
	p, data := &x.pipes[i], &x.batch.data[i]
	*data = slices.Grow(*data, p.aside)
	for p.aside > 0 {
		n, err := readNow(x.seq.side.r, (*data)[len(*data):cap(*data)])
		if err != nil { // of a pipe that holds something there is none
			panic(err)
		}
		*data = (*data)[:len(*data)+n]
		p.aside -= n
		x.match.packet(i, n)
	}
}

// grow enlarges a pipe that was full.
func (x *ordered) grow(i int) int {
	return x.seq.side.grow(x.pipes[i].fd, x.match.lanes[i].slots)
}

// pass says that n bytes of a lane come next.
func (x *ordered) pass(i, n int) {
	b := x.batch
	b.ends[i] += n
	if k := len(b.runs); k > 0 && b.runs[k-1].Stream == streamOf[i] {
		b.runs[k-1].Length += n
	} else {
		b.runs = append(b.runs, logs.Run{Stream: streamOf[i], Length: n})
	}
}
