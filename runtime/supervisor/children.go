package supervisor

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// child is one process that an exec started: the leader of its own session and
// process group.
type child struct {
	pid int
	// cancelled is guarded by children.mu while the child lives; then it is part
	// of the exit.
	cancelled bool
	// exited gets the exit, once.
	exited chan exit
}

// exit is how a child ended.
type exit struct {
	status    syscall.WaitStatus
	at        time.Time
	cancelled bool
}

// children starts and reaps processes. PID 1 inherits every orphan, so it waits
// for any process; the exits of those that nobody registered are dropped.
type children struct {
	// mu guards live and idle. It is held across fork and wait because it is there
	// for exactly their order: a child cannot be reaped before it is registered,
	// and a process id cannot be used again while it is being signalled. Neither
	// call waits: Go's fork lasts until the exec, and the wait returns at once.
	mu   sync.Mutex
	live map[int]*child
	// idle is closed when there is no process left to wait for; nil until
	// somebody asks.
	idle chan struct{}
}

func newChildren() *children { return &children{live: make(map[int]*child)} }

// start forks and executes argv0 and registers the child.
func (c *children) start(argv0 string, argv []string, attr *syscall.ProcAttr) (*child, error) {
	ch := &child{exited: make(chan exit, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec(argv0, argv, attr)
	if err != nil {
		return nil, err
	}
	ch.pid = pid
	c.live[pid] = ch
	return ch, nil
}

// signal sends sig to the process group of a child that has not been reaped. It
// returns false when the child has ended. cancel marks its exit as cancelled.
func (c *children) signal(ch *child, sig syscall.Signal, cancel bool) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[ch.pid] != ch {
		return false, nil
	}
	ch.cancelled = ch.cancelled || cancel
	return true, syscall.Kill(-ch.pid, sig)
}

// run reaps until ctx ends, whenever chld reports SIGCHLD.
func (c *children) run(ctx context.Context, chld <-chan os.Signal) {
	for {
		c.reap()
		select {
		case <-chld:
		case <-ctx.Done():
			return
		}
	}
}

// reap collects every process that has ended by now.
func (c *children) reap() {
	for c.reapOne() {
	}
}

func (c *children) reapOne() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	switch {
	case errors.Is(err, syscall.EINTR):
		return true
	case errors.Is(err, syscall.ECHILD):
		if c.idle != nil {
			close(c.idle)
			c.idle = nil
		}
		return false
	case err != nil || pid <= 0:
		return false
	}
	if ch := c.live[pid]; ch != nil {
		delete(c.live, pid)
		ch.exited <- exit{status: status, at: time.Now(), cancelled: ch.cancelled}
	}
	return true
}

// gone returns a channel that is closed once no process is left below this one.
func (c *children) gone() <-chan struct{} {
	c.mu.Lock()
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	c.reap() // closes it now if there is none
	return idle
}
