package notify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

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

const (
	// lingerFor is how long a kernel watch stays after its last follower. The kernel looks
	// at every cached entry of a directory when its first watch is added and when its last
	// one is removed. A sandbox keeps the files of all its execs in one directory, and each
	// exec has a follower, so each exec would cost more than the one before.
	lingerFor = time.Minute
	// maxLingering bounds the watches that stay, because the kernel allows few per user.
	maxLingering = 64
)

// lingerLocked keeps the kernel watch of a directory without followers for a while. It
// returns false if there are too many already.
func (n *Notifier) lingerLocked(dir *directory) bool {
	if n.closed || n.lingering >= maxLingering {
		return false
	}
	n.lingering++
	n.work.Add(1)
	dir.linger = time.AfterFunc(n.linger, func() {
		defer n.work.Done()
		n.expire(dir)
	})
	return true
}

// stayLocked ends the time that a directory lingers: it has a follower again, or its watch
// is gone. Without it, it does nothing.
func (n *Notifier) stayLocked(dir *directory) {
	if dir.linger == nil {
		return
	}
	if dir.linger.Stop() {
		n.work.Done()
	}
	dir.linger = nil
	n.lingering--
}

// expire removes the kernel watch of a directory that has lingered long enough.
func (n *Notifier) expire(dir *directory) {
	n.order.Lock()
	defer n.order.Unlock()
	if n.forget(dir) {
		n.unwatch(dir)
	}
}

// forget removes a directory without followers that still lingers. It returns false if it
// does not.
func (n *Notifier) forget(dir *directory) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if dir.linger == nil || n.closed || n.dirs[dir.wd] != dir {
		return false
	}
	n.stayLocked(dir)
	delete(n.dirs, dir.wd)
	return true
}

// unwatch removes the kernel watch of a directory. The caller holds order.
func (n *Notifier) unwatch(dir *directory) {
	n.mu.Lock()
	queue := n.queue
	n.mu.Unlock()
	// Ignore the error: the kernel may have removed the watch itself.
	_ = control(queue, func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(dir.wd))
		return err
	})
}

// pace is the minimum time between two reads of the kernel's queue. The first change
// after a quiet period wakes followers at once. A file that changes ten thousand times
// a second wakes them a thousand times a second.
const pace = time.Millisecond

// mask selects appends, creations and renames into the directory. IN_ONLYDIR and
// IN_DONT_FOLLOW make the kernel refuse a path that is not itself a directory.
const mask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

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

// wake sends a token. If there is one in the channel already, that suffices.
func (w *Watch) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// dropLocked handles the end of a kernel watch that we did not remove: the directory
// was removed. It wakes the followers, which then find that out.
func (n *Notifier) dropLocked(wd int32) {
	dir := n.dirs[wd]
	if dir == nil {
		return
	}
	delete(n.dirs, wd)
	n.stayLocked(dir)
	dir.wakeAll()
}

// wakeAll wakes all followers, because events were lost.
func (n *Notifier) wakeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wakeAllLocked()
}

func (n *Notifier) wakeAllLocked() {
	for _, dir := range n.dirs {
		dir.wakeAll()
	}
}

func (d *directory) wakeAll() {
	for _, watches := range d.watches {
		for w := range watches {
			w.wake()
		}
	}
}

// snapshot is what a poll sees of an exec: its directory, then each of its log files. A
// file that does not exist is zero.
type snapshot [maxFiles + 1]struct {
	dev, ino    uint64
	size, mtime int64
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

// queueBuffer is the size of a read in bytes. It has room for more than a thousand
// events about log files.
const queueBuffer = 64 << 10

// errorPause is how long run waits after a failed read of the queue. It also wakes all
// followers then, so that they continue, although slowly.
const errorPause = time.Second

// run reads the kernel's queue until Close.
func (n *Notifier) run(queue *os.File) {
	buf := make([]byte, queueBuffer)
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		read, err := queue.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		pause := pace
		if err != nil {
			slog.Error("cannot read inotify events", "error", err)
			pause = errorPause
			n.wakeAll()
		} else {
			n.handle(buf[:read])
		}
		rest.Reset(pause)
		select {
		case <-n.stop:
			return
		case <-rest.C:
		}
	}
}

// handle wakes the followers that the events concern.
func (n *Notifier) handle(events []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events[0:]))
		what := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if end > len(events) {
			return // never happens: the kernel returns complete events
		}
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		events = events[end:]
		switch {
		case what&unix.IN_Q_OVERFLOW != 0:
			n.wakeAllLocked()
		case what&unix.IN_IGNORED != 0:
			n.dropLocked(wd)
		default:
			n.wakeLocked(wd, name)
		}
	}
}

// wakeLocked wakes the followers of the exec that a file belongs to.
func (n *Notifier) wakeLocked(wd int32, name []byte) {
	dir := n.dirs[wd]
	if dir == nil {
		return
	}
	for _, suffix := range suffixes {
		if id, ok := bytes.CutSuffix(name, suffix); ok {
			for w := range dir.watches[string(id)] { // the conversion does not allocate
				w.wake()
			}
			return
		}
	}
}

// suffixes has the suffixes of the names of log files.
var suffixes = func() [][]byte {
	var all [][]byte
	for _, suffix := range logs.Suffixes() {
		all = append(all, []byte(suffix))
	}
	return all
}()

// maxFiles is at least the number of log files of an exec. A test compares it with
// logs.Suffixes.
const maxFiles = 6
