package output

import (
	"fmt"
	"os"
	"runtime"
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
