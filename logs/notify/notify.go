// Package notify wakes the followers of exec logs when the files change. One
// inotify instance serves the whole daemon, because hosts allow few of them per
// user, and one kernel watch serves all followers in a sandbox's directory.
//
// It sits apart from package logs so that the supervisor, which only writes,
// does not carry it. It speaks to the kernel directly: this needs three event
// types and no names as strings, and so costs no allocation per event.
package notify

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// pace is the least time between two reads of the kernel's queue. The first
// change after a quiet time is told at once; a file that changes ten thousand
// times a second wakes its followers a thousand times.
const pace = time.Millisecond

// mask: appended to, made, renamed to its place. ONLYDIR and DONT_FOLLOW refuse
// what is not the directory itself.
const mask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

// Notifier tells followers of changes. Its methods may be called from several
// goroutines.
type Notifier struct {
	queue *os.File
	stop  chan struct{} // closed by Close
	done  chan struct{} // closed when the reading goroutine has ended

	// order guards nothing in memory. It is held across the system calls that add
	// and remove kernel watches, because the kernel knows one watch per directory:
	// a removal must not overtake an addition of the same one.
	order sync.Mutex

	// mu guards dirs, what hangs below it, and closed. Never held across a
	// system call.
	mu     sync.Mutex
	dirs   map[int32]*directory
	closed bool
}

// directory is one kernel watch.
type directory struct {
	wd int32
	// watches of an exec, by its id.
	watches map[string]map[*Watch]struct{}
}

// Watch is one follower's interest in one exec.
type Watch struct {
	notifier *Notifier
	dir      *directory
	execID   string
	c        chan struct{}
	close    sync.Once
}

// New starts the daemon's notifier. Close must be called to end it.
func New() (*Notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
			"The kernel allows no further inotify instance; end a program of this user that holds one, or raise "+
				"the limits: sysctl fs.inotify.max_user_instances=512, and ulimit -n for the daemon.").Because(err)
	}
	if err != nil {
		return nil, fmt.Errorf("starting inotify: %w", err)
	}
	n := &Notifier{
		queue: os.NewFile(uintptr(fd), "inotify"),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
		dirs:  make(map[int32]*directory),
	}
	go n.run()
	return n, nil
}

// Close ends the notifier and waits for its goroutine. Watches that are still
// open are not woken any more.
func (n *Notifier) Close() error {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	n.mu.Unlock()
	if closed {
		<-n.done
		return nil
	}
	close(n.stop)
	err := n.queue.Close()
	<-n.done
	return err
}

// Watch tells of every change of the log files of an exec, also of their first
// appearance, from now on. The directory must exist. What changed before the call
// is not told: watch first, then read to the end, then wait.
func (n *Notifier) Watch(dirPath, execID string) (*Watch, error) {
	n.order.Lock()
	defer n.order.Unlock()
	wd, err := n.add(dirPath)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	dir := n.dirs[wd]
	if dir == nil {
		dir = &directory{wd: wd, watches: make(map[string]map[*Watch]struct{}, 1)}
		n.dirs[wd] = dir
	}
	w := &Watch{notifier: n, dir: dir, execID: execID, c: make(chan struct{}, 1)}
	if dir.watches[execID] == nil {
		dir.watches[execID] = make(map[*Watch]struct{}, 1)
	}
	dir.watches[execID][w] = struct{}{}
	return w, nil
}

// add gives the kernel's number for a directory; the same one for one that is
// watched already.
func (n *Notifier) add(dirPath string) (int32, error) {
	var wd int
	err := n.control(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, dirPath, mask)
		return err
	})
	switch {
	case err == nil:
		return int32(wd), nil
	case errors.Is(err, unix.ENOSPC):
		return 0, fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
			"The kernel allows no further inotify watch; end a program of this user that holds many, "+
				"or raise the limit: sysctl fs.inotify.max_user_watches=524288.").Because(err)
	case errors.Is(err, unix.ENOENT):
		return 0, fmt.Errorf("watching %s: %w: %w", dirPath, logs.ErrNotExist, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return 0, fmt.Errorf("watching %s: not a directory: %w", dirPath, logs.ErrTampered)
	case n.isClosed():
		return 0, fmt.Errorf("watching %s: the notifier is closed: %w", dirPath, errdefs.ErrUnavailable)
	}
	return 0, fmt.Errorf("watching %s: %w", dirPath, err)
}

func (n *Notifier) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// control calls fn with the descriptor of the queue, which stays open meanwhile.
func (n *Notifier) control(fn func(fd int) error) error {
	conn, err := n.queue.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// C has a token when something may have changed since the last one was taken.
// A token can come for nothing; none is lost. It is never closed.
func (w *Watch) C() <-chan struct{} { return w.c }

// Close ends the interest. The last follower in a directory takes the kernel
// watch away.
func (w *Watch) Close() {
	w.close.Do(func() {
		n := w.notifier
		n.order.Lock()
		defer n.order.Unlock()
		if n.forget(w) {
			// The kernel may have dropped it by itself a moment ago: no matter.
			_ = n.control(func(fd int) error {
				_, err := unix.InotifyRmWatch(fd, uint32(w.dir.wd))
				return err
			})
		}
	})
}

// forget takes a watch out and tells whether the kernel watch is useless now.
func (n *Notifier) forget(w *Watch) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	same := w.dir.watches[w.execID]
	delete(same, w)
	if len(same) == 0 {
		delete(w.dir.watches, w.execID)
	}
	if len(w.dir.watches) > 0 || n.dirs[w.dir.wd] != w.dir { // or it is gone already
		return false
	}
	delete(n.dirs, w.dir.wd)
	return true
}

// wake leaves a token; if there is one already, it says the same.
func (w *Watch) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}
