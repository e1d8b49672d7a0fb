package notify

import (
	"time"

	"golang.org/x/sys/unix"
)

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
