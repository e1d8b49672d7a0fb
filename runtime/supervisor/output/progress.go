package output

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// progress counts the output of one pipe or terminal on its way into the log, and
// tells when all output up to a moment is there.
type progress struct {
	// mu guards the fields below.
	// Held across I/O: what was taken and what is still inside must be seen at one
	// moment. The reads never wait.
	mu sync.Mutex
	// taken counts the bytes that were read, kept those given to the log.
	taken, kept uint64
	// goal is what kept must reach; meaningful while somebody waits.
	goal uint64
	// reached is closed when kept has reached goal, or at the end; nil if nobody waits.
	reached chan struct{}
	// ended is true when there will be no more bytes.
	ended bool
}

// read takes output with a call that does not wait. EAGAIN says that nothing is left.
func (p *progress) read(call func() (int, error)) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, err = call(); n > 0 {
		p.taken += uint64(n)
	}
	if errors.Is(err, unix.EAGAIN) {
		// Less may be there than await has seen: a process has read its own output.
		p.goal = min(p.goal, p.taken)
		p.tellLocked()
	}
	return n, err
}

// awaited tells whether somebody waits.
func (p *progress) awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reached != nil
}

// wrote counts n bytes as given to the log.
func (p *progress) wrote(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept += uint64(n)
	p.tellLocked()
}

// end says that there will be no more bytes.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.tellLocked()
}

func (p *progress) tellLocked() {
	if p.reached != nil && (p.ended || p.kept >= p.goal) {
		close(p.reached)
		p.reached = nil
	}
}

// await returns a channel that is closed when all that was written before the call is
// in the log. inside returns how many bytes are still in the pipe at most; it is not
// called after the end. Only one caller at a time may wait.
func (p *progress) await(inside func() int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	reached := make(chan struct{})
	p.reached, p.goal = reached, p.taken
	if !p.ended {
		p.goal += uint64(max(inside(), 0))
	}
	p.tellLocked()
	return reached
}

// bytesIn returns how many bytes a pipe holds.
func bytesIn(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.TIOCINQ) // of a pipe it is always known
	return n
}
