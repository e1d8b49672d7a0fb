package supervisor

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// child is one process that an exec started: the leader of its own session and
// process group.
type child struct {
	pid int
	// mark is on it and on what it starts; 0 if it could not be had.
	mark mark
	// end is guarded by children.mu while the child lives.
	end exit
	// exited gets the exit, once.
	exited chan exit
}

// exit is how a child ended.
type exit struct {
	status syscall.WaitStatus
	at     time.Time
	// cause says why the supervisor ended it.
	cause guestv1.EndCause
	// usage is of the child and of what it left behind and ended before it.
	usage usage
	// killed is true when SIGKILL ended an orphan of it.
	killed bool
}

// children starts and reaps processes. PID 1 inherits every orphan, so it waits
// for any process; the exits of those that nobody registered are dropped.
type children struct {
	// mu guards live, marks, ending and idle.
	// Held across I/O: a child cannot be reaped before it is registered, and a process
	// id cannot be used again while it is being signalled. Go's fork lasts until the
	// exec; the wait returns at once; what is read of a process is in /proc.
	mu   sync.Mutex
	live map[int]*child
	// marks is the last mark that was given.
	marks mark
	// ending is true once all processes are being ended: none is started any more.
	ending bool
	// idle is closed when there is no process left to wait for; nil until
	// somebody asks.
	idle chan struct{}
}

func newChildren() *children { return &children{live: make(map[int]*child), marks: firstMark()} }

// errEnding is the answer to a start that the end of all processes came before.
var errEnding = errors.New("all processes are being ended")

// start forks and executes argv0 and registers the child.
func (c *children) start(argv0 string, argv []string, attr *syscall.ProcAttr) (*child, error) {
	ch := &child{exited: make(chan exit, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil, errEnding
	}
	c.marks++
	off, marked := c.marks.wear()
	pid, err := syscall.ForkExec(argv0, argv, attr)
	off()
	if err != nil {
		return nil, err
	}
	ch.pid = pid
	if marked {
		ch.mark = c.marks
	}
	c.live[pid] = ch
	return ch, nil
}

// signal sends sig to the process group of a child that has not been reaped. It
// returns false when the child has ended, which it may have without having been
// reaped. The first cause that is given is that of its exit.
func (c *children) signal(ch *child, sig syscall.Signal, cause guestv1.EndCause) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[ch.pid] != ch {
		return false, nil
	}
	if ended, _ := waiting(unix.P_PID, ch.pid); ended != 0 {
		return false, nil
	}
	if ch.end.cause == guestv1.EndCause_END_CAUSE_NONE {
		ch.end.cause = cause
	}
	return true, syscall.Kill(-ch.pid, sig)
}

// stopping refuses further starts, so that whoever looks for processes after it sees
// them all, and gives every child that lives the cause that it is ended for, if it has
// none.
func (c *children) stopping() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
	for pid, ch := range c.live {
		if ended, _ := waiting(unix.P_PID, pid); ended == 0 && ch.end.cause == guestv1.EndCause_END_CAUSE_NONE {
			ch.end.cause = guestv1.EndCause_END_CAUSE_STOP
		}
	}
}

// terminate sends SIGTERM, once, to processes that were seen. Those in the group of a
// child get it through the group, because then the kernel also gives it to what one of
// them has forked since, which would go on without its parent. A second look would find
// that too, but also what they start in answer to the signal.
func (c *children) terminate(seen []process) {
	for _, p := range c.terminateGroups(seen) {
		p.kill(syscall.SIGTERM)
	}
}

// terminateGroups sends SIGTERM to the groups of children and returns who is in none.
func (c *children) terminateGroups(seen []process) (others []process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := make(map[int]bool)
	for _, p := range seen {
		switch {
		case c.live[p.group] == nil:
			others = append(others, p)
		case !told[p.group]:
			told[p.group] = true
			_ = syscall.Kill(-p.group, syscall.SIGTERM)
		}
	}
	return others
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
	// Whose an orphan is can be seen only before it is reaped.
	pid, err := waiting(unix.P_ALL, 0)
	switch {
	case errors.Is(err, syscall.ECHILD):
		if c.idle != nil {
			close(c.idle)
			c.idle = nil
		}
		return false
	case err != nil || pid <= 0:
		return false
	}
	ch := c.live[pid]
	of := ch
	if ch == nil {
		of = c.ownerLocked(pid)
	}
	var status syscall.WaitStatus
	var used syscall.Rusage
	for {
		if _, err := syscall.Wait4(pid, &status, syscall.WNOHANG, &used); !interrupted(err) {
			break
		}
	}
	if of != nil {
		of.end.usage.add(&used)
		of.end.killed = of.end.killed || ch == nil && status.Signaled() && status.Signal() == syscall.SIGKILL
	}
	if ch != nil {
		delete(c.live, pid)
		ch.end.status, ch.end.at = status, time.Now()
		ch.exited <- ch.end
	}
	return true
}

// ownerLocked returns the living child that an orphan came from, by its session
// or process group; nil if it left both, or its leader has ended.
func (c *children) ownerLocked(orphan int) *child {
	if len(c.live) == 0 {
		return nil
	}
	p, _, ok := readStat(orphan)
	if !ok {
		return nil
	}
	if ch := c.live[p.session]; ch != nil {
		return ch
	}
	return c.live[p.group]
}

// waiting returns a process that has ended and was not reaped, of those that id
// names; 0 if there is none.
func waiting(idType, id int) (pid int, err error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if interrupted(err) {
			continue
		}
		// The field follows three numbers and begins where a pointer could.
		const at = (3*4 + unsafe.Sizeof(uintptr(0)) - 1) / unsafe.Sizeof(uintptr(0)) * unsafe.Sizeof(uintptr(0))
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), at))), err
	}
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
