package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

// steal reads a pipe empty through its writing end, as a process can that has it for
// its output.
func steal(t *testing.T, end *os.File) {
	t.Helper()
	thief, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", end.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(thief) }()
	for buf := make([]byte, 64<<10); ; {
		if n, err := unix.Read(thief, buf); n <= 0 {
			if !errors.Is(err, unix.EAGAIN) {
				t.Error(n, err)
			}
			return
		}
	}
}

// until waits for what is so under a lock in a moment.
func until(mu *sync.Mutex, so func() bool) {
	for {
		mu.Lock()
		ok := so()
		mu.Unlock()
		if ok {
			return
		}
		runtime.Gosched()
	}
}

// A grandchild that reads what is in the pipe, and keeps that open, does not hold up
// the exit.
func TestOutputThatIsStolenFromThePipeIsNotWaitedFor(t *testing.T) {
	writer := newLog(t)
	drained := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()

	t.Run("by reading", func(t *testing.T) {
		stdout, child, err := newPipePump(logs.Stdout, writer, freely)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = child.Close() }()
		if _, err := child.WriteString("stolen"); err != nil {
			t.Fatal(err)
		}
		go func() { stdout.drain(); drained <- struct{}{} }()
		until(&stdout.mu, func() bool { return stdout.reached != nil })
		steal(t, child)
		running.Go(stdout.run)
		<-drained
	})
	t.Run("by order", func(t *testing.T) {
		q, err := startSequencer()
		if err != nil {
			t.Fatal(err)
		}
		defer q.stop()
		disk := make(chan struct{}, 1)
		x, err := q.open(writer, held(disk))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); x.run() }()
		defer func() { closeAll([]io.Closer{x.child[0], x.child[1]}); <-done }()
		disk <- struct{}{} // the disk hangs
		for i := range inFlight + 1 {
			if _, err := x.child[0].WriteString("output"); err != nil {
				t.Fatal(err)
			}
			until(&x.mu, func() bool { return x.batches == i+1 || x.stalled })
		}
		go func() { x.drain(); drained <- struct{}{} }()
		until(&x.pipes[0].mu, func() bool { return x.pipes[0].reached != nil })
		steal(t, x.child[0])
		<-disk
		<-drained
	})
}
