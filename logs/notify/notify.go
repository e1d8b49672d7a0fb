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
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
)

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
