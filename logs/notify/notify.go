// Package notify wakes the followers of exec logs when the files change. The whole
// daemon shares one inotify instance, because hosts allow few of them per user. All
// followers in a sandbox's directory share one kernel watch.
//
// The package is separate from package logs so that the supervisor, which only writes
// logs, does not link it. It uses inotify directly rather than a library: it needs only
// three event types and no names as strings, so it allocates nothing per event.
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

// pace is the minimum time between two reads of the kernel's queue. The first change
// after a quiet period wakes followers at once. A file that changes ten thousand times
// a second wakes them a thousand times a second.
const pace = time.Millisecond

// mask selects appends, creations and renames into the directory. IN_ONLYDIR and
// IN_DONT_FOLLOW make the kernel refuse a path that is not itself a directory.
const mask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

// Notifier wakes followers when files change. Its methods are safe for concurrent use.
type Notifier struct {
	queue *os.File
	stop  chan struct{} // closed by Close
	done  chan struct{} // closed when the reading goroutine has ended

	// order guards no data. It serializes the system calls that add and remove kernel
	// watches.
	// Held across I/O: there is one kernel watch per directory, so a removal must not
	// happen after a concurrent addition for the same directory.
	order sync.Mutex

	// mu guards dirs, everything reachable from it, and closed. It is never held across
	// a system call.
	mu     sync.Mutex
	dirs   map[int32]*directory
	closed bool
}

// directory is one kernel watch.
type directory struct {
	wd int32
	// watches has the watches of each exec by its id.
	watches map[string]map[*Watch]struct{}
}

// Watch is one follower's subscription to one exec.
type Watch struct {
	notifier *Notifier
	dir      *directory
	execID   string
	c        chan struct{}
	close    sync.Once
}

// New starts the daemon's notifier. Close ends it.
func New() (*Notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
			"The kernel allows no further inotify instance; end a program of this user that uses one, or raise "+
				"the limits: sysctl fs.inotify.max_user_instances=512, and ulimit -n for the daemon.").Because(err)
	}
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
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

// Close ends the notifier and waits for its goroutine. Open watches are not woken after
// that.
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

// Watch subscribes to all changes of an exec's log files, including their creation. The
// directory must exist. Changes before the call are not reported: watch first, then read
// to the end, then wait.
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

// add adds a kernel watch and returns its descriptor. For a directory that is watched
// already, it returns the existing one.
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
			"The kernel allows no further inotify watch; end a program of this user that uses many, "+
				"or raise the limit: sysctl fs.inotify.max_user_watches=524288.").Because(err)
	case errors.Is(err, unix.ENOENT):
		return 0, fmt.Errorf("watch %s: %w: %w", dirPath, logs.ErrNotExist, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return 0, fmt.Errorf("watch %s: not a directory: %w", dirPath, logs.ErrTampered)
	case n.isClosed():
		return 0, fmt.Errorf("watch %s: the notifier is closed: %w", dirPath, errdefs.ErrUnavailable)
	}
	return 0, fmt.Errorf("watch %s: %w", dirPath, err)
}

func (n *Notifier) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// control calls fn with the descriptor of the queue, which stays open during the call.
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

// C receives a token if the files may have changed since the last token was received.
// There may be tokens without a change, but never a change without a later token. The
// channel is never closed.
func (w *Watch) C() <-chan struct{} { return w.c }

// Close ends the subscription. If it was the last one in the directory, Close removes
// the kernel watch.
func (w *Watch) Close() {
	w.close.Do(func() {
		n := w.notifier
		n.order.Lock()
		defer n.order.Unlock()
		if n.remove(w) {
			// Ignore the error: the kernel may have removed the watch itself.
			_ = n.control(func(fd int) error {
				_, err := unix.InotifyRmWatch(fd, uint32(w.dir.wd))
				return err
			})
		}
	})
}

// remove removes a watch. It reports whether the kernel watch is unused now.
func (n *Notifier) remove(w *Watch) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	same := w.dir.watches[w.execID]
	delete(same, w)
	if len(same) == 0 {
		delete(w.dir.watches, w.execID)
	}
	if len(w.dir.watches) > 0 || n.dirs[w.dir.wd] != w.dir { // still used, or already removed by the kernel
		return false
	}
	delete(n.dirs, w.dir.wd)
	return true
}

// wake sends a token. If there is one in the channel already, that suffices.
func (w *Watch) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}
