package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// endless is the environment of a process that has pointed the kernel at a
// terabyte of zeros, which prctl(PR_SET_MM_MAP) lets everybody do.
type endless struct{ given int }

func (e *endless) Read(p []byte) (int, error) {
	if e.given > 8*maxEnvironment {
		return 0, io.EOF
	}
	clear(p)
	e.given += len(p)
	return len(p), nil
}

func TestTheEnvironmentOfAHostileProcessIsReadInBounds(t *testing.T) {
	if e := new(endless); hasEntry(e, "A=b") || e.given > 2*maxEnvironment {
		t.Errorf("%d bytes were read", e.given)
	}
}

func TestAnEntryIsFoundWhereverItStands(t *testing.T) {
	other := append(bytes.Repeat([]byte("x"), 3*environmentPiece/2), 0)
	for name, c := range map[string]struct {
		environ []byte
		want    bool
	}{
		"alone":                 {[]byte("A=b"), true},
		"with its end":          {[]byte("A=b\x00"), true},
		"first":                 {append([]byte("A=b\x00"), other...), true},
		"last":                  {append(bytes.Clone(other), "A=b\x00"...), true},
		"across two pieces":     {append(bytes.Repeat([]byte{0}, environmentPiece-2), "A=b\x00"...), true},
		"longer":                {[]byte("A=bc\x00"), false},
		"end of another":        {[]byte("AA=b\x00"), false},
		"end of a long one":     {append(bytes.Repeat([]byte("x"), environmentPiece-1), "A=b\x00"...), false},
		"end of a longer one":   {append(bytes.Repeat([]byte("x"), environmentPiece), "A=b\x00"...), false},
		"not there":             {other, false},
		"of nothing":            {nil, false},
		"after the environment": {append(bytes.Repeat([]byte{0}, maxEnvironment), "A=b\x00"...), false},
	} {
		if got := hasEntry(bytes.NewReader(c.environ), "A=b"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

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
	s := newInside(t)
	writer, fail := s.createLogs(t.Context(), &guestv1.StartRequest{ExecId: "e"})
	if fail != nil {
		t.Fatal(fail.message)
	}
	defer func() { _ = writer.Close() }()
	drained := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()

	t.Run("by reading", func(t *testing.T) {
		stdout, _, err := newPumps(writer, s.disk)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stdout.child.Close() }()
		if _, err := stdout.child.WriteString("stolen"); err != nil {
			t.Fatal(err)
		}
		go func() { stdout.drain(); drained <- struct{}{} }()
		until(&stdout.mu, func() bool { return stdout.waiter != nil })
		steal(t, stdout.child)
		running.Go(stdout.run)
		<-drained
	})
	t.Run("by order", func(t *testing.T) {
		q, err := startSequencer()
		if err != nil {
			t.Fatal(err)
		}
		defer q.stop()
		disk := make(gate, 1)
		x, err := q.open(writer, disk)
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
		until(&x.mu, func() bool { return x.waiter != nil })
		steal(t, x.child[0])
		<-disk
		<-drained
	})
}
