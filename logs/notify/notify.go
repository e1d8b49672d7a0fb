// Package notify wakes the followers of exec logs when the files change. The whole
// daemon shares one inotify instance, because hosts allow few of them per user. All
// followers in a sandbox's directory share one kernel watch.
//
// The kernel counts instances and watches per user, over all containers of the host. A
// process of root counts for an id of its own (package ownid). A sandbox can use up those of
// another user. The notifier then polls the files instead, and returns to inotify once the
// kernel allows it.
//
// The package is separate from package logs so that the supervisor, which only writes
// logs, does not link it. It uses inotify directly rather than a library: it needs only
// three event types and no names as strings, so it allocates nothing per event. Measured
// under thousands of writes a second, that takes 60 % of the CPU time of a library.
package notify

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/logs"
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
	kernel kernel
	stop   chan struct{} // closed by Close
	// pollers wakes the polling goroutine when there is something to poll.
	pollers chan struct{}
	linger  time.Duration  // see lingerFor
	work    sync.WaitGroup // the goroutines that read and poll, and the timers of linger

	// order guards no data. It serializes the system calls that add and remove kernel
	// watches and make the queue.
	// Held across I/O: there is one kernel watch per directory, so a removal must not
	// happen after a concurrent addition for the same directory.
	order sync.Mutex

	// mu guards the fields below and everything reachable from dirs and polled. It is
	// never held across a system call.
	mu sync.Mutex
	// queue is the inotify instance. It is nil if the kernel has not allowed one yet.
	queue *os.File
	// dirs has the directories with a kernel watch. polled has the others, by path.
	dirs   map[int32]*directory
	polled map[string]*directory
	// lingering is the number of directories without followers among dirs.
	lingering int
	// refused is why the kernel refused the newest instance or watch.
	refused error
	closed  bool
}

// kernel has the system calls that a kernel without room refuses.
type kernel struct {
	instance func() (fd int, err error)
	watch    func(fd int, dirPath string) (wd int, err error)
}

// directory is one kernel watch, or one directory that is polled.
type directory struct {
	path string
	wd   int32
	// watches has the watches of each exec by its id.
	watches map[string]map[*Watch]struct{}
	// seen is what the last poll saw of each exec.
	seen map[string]snapshot
	// linger is set while the directory keeps its kernel watch without a follower.
	linger *time.Timer
}

// Watch is one follower's subscription to one exec.
type Watch struct {
	notifier *Notifier
	dir      *directory
	execID   string
	c        chan struct{}
	close    sync.Once
}

// New starts the daemon's notifier. Close ends it. If the kernel allows no inotify
// instance, the notifier polls.
func New() *Notifier {
	return start(kernel{
		instance: func() (int, error) { return process.InotifyInit(unix.IN_CLOEXEC | unix.IN_NONBLOCK) },
		watch:    func(fd int, dirPath string) (int, error) { return unix.InotifyAddWatch(fd, dirPath, mask) },
	}, retryEvery, lingerFor)
}

func start(k kernel, retry, linger time.Duration) *Notifier {
	n := &Notifier{
		kernel: k, linger: linger, stop: make(chan struct{}), pollers: make(chan struct{}, 1),
		dirs: make(map[int32]*directory), polled: make(map[string]*directory),
	}
	n.order.Lock()
	defer n.order.Unlock()
	n.openQueue()
	n.work.Go(func() { n.poll(retry) })
	return n
}

// openQueue makes the inotify instance, if there is none and the kernel allows it. The
// caller holds order.
func (n *Notifier) openQueue() *os.File {
	n.mu.Lock()
	queue, closed := n.queue, n.closed
	n.mu.Unlock()
	if queue != nil || closed {
		return queue
	}
	fd, err := n.kernel.instance()
	if err != nil {
		n.refuse(fmt.Errorf("make an inotify instance: %w", err))
		return nil
	}
	queue = os.NewFile(uintptr(fd), "inotify")
	if !n.begin(queue) {
		_ = queue.Close()
		return nil
	}
	return queue
}

// begin starts to read the queue, unless the notifier is closed.
func (n *Notifier) begin(queue *os.File) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.queue = queue
	n.work.Go(func() { n.run(queue) })
	return true
}

// refuse records that the kernel has no room, and logs it once.
func (n *Notifier) refuse(err error) {
	n.mu.Lock()
	first := n.refused == nil
	n.refused = err
	n.mu.Unlock()
	if first {
		slog.Warn("the kernel refuses inotify; log files are polled until it allows it", "error", err)
	}
}

// Polling returns why files are polled instead of watched, or nil if none are.
func (n *Notifier) Polling() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queue == nil || len(n.polled) > 0 {
		return n.refused
	}
	return nil
}

// Close ends the notifier and waits for its goroutines. Open watches are not woken after
// that.
func (n *Notifier) Close() error {
	n.mu.Lock()
	closed, queue := n.closed, n.queue
	n.closed = true
	for _, dir := range n.dirs {
		n.stayLocked(dir)
	}
	n.mu.Unlock()
	var err error
	if !closed {
		close(n.stop)
		if queue != nil {
			err = queue.Close()
		}
	}
	n.work.Wait()
	return err
}

// Watch subscribes to all changes of an exec's log files, including their creation. The
// directory must exist. Changes before the call are not reported: watch first, then read
// to the end, then wait.
func (n *Notifier) Watch(dirPath, execID string) (*Watch, error) {
	n.order.Lock()
	defer n.order.Unlock()
	if n.isClosed() {
		return nil, fmt.Errorf("watch %s: the notifier is closed: %w", dirPath, errdefs.ErrUnavailable)
	}
	wd, err := n.add(dirPath)
	if err != nil && !errors.Is(err, errNoRoom) {
		return nil, err
	}
	if err != nil {
		if err := checkDirectory(dirPath); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var dir *directory
	if err == nil {
		dir = n.watchedLocked(wd, dirPath)
	} else {
		dir = n.polledLocked(dirPath)
	}
	w := &Watch{notifier: n, dir: dir, execID: execID, c: make(chan struct{}, 1)}
	if dir.watches[execID] == nil {
		dir.watches[execID] = make(map[*Watch]struct{}, 1)
	}
	dir.watches[execID][w] = struct{}{}
	return w, nil
}

// watchedLocked returns the directory of a kernel watch. If the directory was polled
// before, it no longer is.
func (n *Notifier) watchedLocked(wd int32, dirPath string) *directory {
	if dir := n.dirs[wd]; dir != nil {
		n.stayLocked(dir)
		return dir
	}
	dir := n.polled[dirPath]
	if dir == nil {
		dir = &directory{path: dirPath, watches: make(map[string]map[*Watch]struct{}, 1)}
	}
	delete(n.polled, dirPath)
	dir.wd, dir.seen = wd, nil
	n.dirs[wd] = dir
	dir.wakeAll() // for changes since the last poll
	return dir
}

// errNoRoom means that the kernel allows no further instance or watch.
var errNoRoom = errors.New("the kernel allows no further inotify instance or watch")

// add adds a kernel watch and returns its descriptor. For a directory that is watched
// already, it returns the existing one. The caller holds order.
func (n *Notifier) add(dirPath string) (int32, error) {
	queue := n.openQueue()
	if queue == nil {
		return 0, errNoRoom
	}
	var wd int
	err := control(queue, func(fd int) (err error) {
		wd, err = n.kernel.watch(fd, dirPath)
		return err
	})
	switch {
	case err == nil:
		return int32(wd), nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		n.refuse(fmt.Errorf("watch %s: %w", dirPath, err))
		return 0, errNoRoom
	case n.isClosed():
		return 0, fmt.Errorf("watch %s: the notifier is closed: %w", dirPath, errdefs.ErrUnavailable)
	}
	return 0, watchError(dirPath, err)
}

func watchError(dirPath string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("watch %s: %w: %w", dirPath, logs.ErrNotExist, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("watch %s: not a directory: %w", dirPath, logs.ErrTampered)
	}
	return fmt.Errorf("watch %s: %w", dirPath, err)
}

func (n *Notifier) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// control calls fn with the descriptor of the queue, which stays open during the call.
func control(queue *os.File, fn func(fd int) error) error {
	conn, err := queue.SyscallConn()
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

// Close ends the subscription. If it was the last one in the directory, the kernel watch
// goes too, a while later.
func (w *Watch) Close() {
	w.close.Do(func() {
		n := w.notifier
		n.order.Lock()
		defer n.order.Unlock()
		if n.remove(w) {
			n.unwatch(w.dir)
		}
	})
}

// remove removes a watch. It reports whether the kernel watch of its directory must go now.
func (n *Notifier) remove(w *Watch) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	same := w.dir.watches[w.execID]
	delete(same, w)
	if len(same) == 0 {
		delete(w.dir.watches, w.execID)
		delete(w.dir.seen, w.execID)
	}
	switch {
	case len(w.dir.watches) > 0:
		return false
	case n.polled[w.dir.path] == w.dir:
		delete(n.polled, w.dir.path)
		return false
	case n.dirs[w.dir.wd] != w.dir, n.lingerLocked(w.dir): // the first was removed by the kernel
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
