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

// child is one process that an exec started. It leads its own session and process group.
type child struct {
	pid int
	// execID is the exec that it belongs to: it is its first process, or a probe of it.
	execID string
	// mark is on the child and all its descendants. It is 0 if it could not be set.
	mark mark
	// end is guarded by children.mu while the child lives.
	end exit
	// exited receives the exit, once.
	exited chan exit
}

// exit is how a child ended.
type exit struct {
	status syscall.WaitStatus
	at     time.Time
	// cause says why the supervisor ended the child.
	cause guestv1.EndCause
	// usage covers the child and its orphans that ended before it.
	usage usage
	// killed is true if SIGKILL ended one of its orphans.
	killed bool
}

// children starts and reaps processes. PID 1 inherits every orphan, so it waits for any
// process. Exits of processes that are not registered are dropped.
type children struct {
	// mu guards live, marks, ending and idle.
	// Held across I/O: a child must not be reaped before it is registered, and a process
	// id must not be reused while it is signalled. Go's fork lasts until the exec; the
	// wait does not block; the reads are from /proc.
	mu   sync.Mutex
	live map[int]*child
	// marks exceeds all marks that are assigned.
	marks mark
	// ending is true once all processes are being ended. Then none is started any more.
	ending bool
	// idle is closed when there is no process left to wait for. It is nil until somebody
	// asks for it.
	idle chan struct{}
}

func newChildren() *children { return &children{live: make(map[int]*child), marks: firstMark()} }

// errEnding is the error of a start after the stop has begun.
var errEnding = errors.New("all processes are being ended")

// start forks, executes argv0, and registers the child as one of the exec.
func (c *children) start(execID, argv0 string, argv []string, attr *syscall.ProcAttr) (*child, error) {
	ch := &child{execID: execID, exited: make(chan exit, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil, errEnding
	}
	mark, off := c.marks.next()
	pid, err := syscall.ForkExec(argv0, argv, attr)
	off()
	if err != nil {
		return nil, err
	}
	ch.pid, ch.mark = pid, mark
	c.live[pid] = ch
	return ch, nil
}

// signal sends sig to the process group of a child that has not been reaped. It returns
// false if the child has ended, reaped or not. The first cause given becomes the cause of
// its exit. The signal 0 only sets the cause.
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

// stopping refuses further starts, so a later search for processes finds all of them. It
// sets the cause of every living child that has none.
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

// terminate sends SIGTERM once to the processes in seen. Those in the group of a child
// get it through the group: then the kernel also sends it to what they have forked since,
// which would otherwise run on without its parent. A second search would find those too,
// but also what the processes start in response to the signal.
func (c *children) terminate(seen []proc) {
	for _, p := range c.terminateGroups(seen) {
		p.kill(syscall.SIGTERM)
	}
}

// terminateGroups sends SIGTERM to the groups of children. It returns the processes that
// are in none of them.
func (c *children) terminateGroups(seen []proc) (others []proc) {
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

// run reaps until ctx ends, each time chld reports SIGCHLD.
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

// reap collects every process that has ended so far.
func (c *children) reap() {
	for c.reapOne() {
	}
}

func (c *children) reapOne() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The owner of an orphan can be determined only before it is reaped.
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

// ownerLocked returns the living child that an orphan came from, by its session or
// process group. It returns nil if the orphan left both, or its leader has ended.
func (c *children) ownerLocked(orphan int) *child {
	if len(c.live) == 0 {
		return nil
	}
	p, _, ok := readStat(orphan, make([]byte, statSize))
	if !ok {
		return nil
	}
	if ch := c.live[p.session]; ch != nil {
		return ch
	}
	return c.live[p.group]
}

// waiting returns a process selected by id that has ended and was not reaped, or 0 if
// there is none.
func waiting(idType, id int) (pid int, err error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if interrupted(err) {
			continue
		}
		// si_pid follows three ints, aligned to the size of a pointer.
		const at = (3*4 + unsafe.Sizeof(uintptr(0)) - 1) / unsafe.Sizeof(uintptr(0)) * unsafe.Sizeof(uintptr(0))
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), at))), err
	}
}

// gone returns a channel that is closed once this process has no descendants.
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

// usage is the resource usage of the processes of an exec.
//
// The times cover every process of the exec that has ended and was reaped, by its parent
// or by the supervisor. They do not cover a process that left both session and process
// group of the exec and then lost its parent, nor one that outlives the exec's first
// process.
//
// The peak is the greater of two numbers. One is the greatest peak of a single one of
// these processes, which the kernel keeps. For the exec's first process that is at least
// the memory of the supervisor when it started the process, about 10 MB. The other is the
// greatest sampled sum over the living processes. The sum counts a shared page once per
// process.
type usage struct {
	user, system time.Duration
	// peak is in bytes.
	peak uint64
}

func (u *usage) add(r *syscall.Rusage) {
	u.user += time.Duration(r.Utime.Nano())
	u.system += time.Duration(r.Stime.Nano())
	u.peak = max(u.peak, uint64(r.Maxrss)<<10)
}
