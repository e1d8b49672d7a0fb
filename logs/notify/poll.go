package notify

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

const (
	// pollEvery is the pause between two polls. A person hardly notices it in a terminal.
	pollEvery = 100 * time.Millisecond
	// retryEvery is the pause between two attempts to use inotify again.
	retryEvery = 2 * time.Second
)

// target is an exec to poll.
type target struct {
	dir    *directory
	execID string
}

// polledLocked returns the directory of a path that is polled.
func (n *Notifier) polledLocked(dirPath string) *directory {
	dir := n.polled[dirPath]
	if dir == nil {
		dir = &directory{path: dirPath, watches: make(map[string]map[*Watch]struct{}, 1), seen: make(map[string]snapshot, 1)}
		n.polled[dirPath] = dir
	}
	select {
	case n.pollers <- struct{}{}:
	default:
	}
	return dir
}

// poll polls until Close. While there is nothing to poll, it waits without a timer.
func (n *Notifier) poll(retry time.Duration) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-n.stop:
			return
		case <-n.pollers:
		}
		tried := time.Now()
		for n.pollOnce() {
			if time.Since(tried) >= retry {
				n.promote()
				tried = time.Now()
			}
			pause.Reset(pollEvery)
			select {
			case <-n.stop:
				return
			case <-pause.C:
			}
		}
	}
}

// pollOnce wakes the followers whose files have changed since the last poll. It reports
// whether anything is polled. The first poll of an exec wakes its followers, because the
// files may have changed before it.
func (n *Notifier) pollOnce() bool {
	n.mu.Lock()
	var targets []target
	for _, dir := range n.polled {
		for id := range dir.watches {
			targets = append(targets, target{dir, id})
		}
	}
	n.mu.Unlock()
	for _, t := range targets {
		now := look(t.dir.path, t.execID)
		n.mu.Lock()
		before, known := t.dir.seen[t.execID]
		if n.polled[t.dir.path] == t.dir && len(t.dir.watches[t.execID]) > 0 && (!known || now != before) {
			t.dir.seen[t.execID] = now
			for w := range t.dir.watches[t.execID] {
				w.wake()
			}
		}
		n.mu.Unlock()
	}
	return len(targets) > 0
}

// look takes a snapshot. A link in place of the directory or a file is not followed.
func look(dirPath, execID string) (s snapshot) {
	var st unix.Stat_t
	if unix.Lstat(dirPath, &st) == nil {
		s[0].dev, s[0].ino = st.Dev, st.Ino
	}
	for i, suffix := range logs.Suffixes() {
		if unix.Lstat(filepath.Join(dirPath, execID+suffix), &st) == nil {
			f := &s[i+1]
			f.dev, f.ino, f.size, f.mtime = st.Dev, st.Ino, st.Size, st.Mtim.Nano()
		}
	}
	return s
}

// promote tries to watch the polled directories with inotify.
func (n *Notifier) promote() {
	n.order.Lock()
	defer n.order.Unlock()
	n.mu.Lock()
	paths := make([]string, 0, len(n.polled))
	for path := range n.polled {
		paths = append(paths, path)
	}
	n.mu.Unlock()
	for _, path := range paths {
		wd, err := n.add(path)
		if err != nil { // still no room, or the directory is gone
			continue
		}
		n.mu.Lock()
		n.watchedLocked(wd, path)
		n.mu.Unlock()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queue != nil && len(n.polled) == 0 {
		n.refused = nil
	}
}

// checkDirectory fails as a kernel watch would.
func checkDirectory(dirPath string) error {
	var st unix.Stat_t
	err := unix.Lstat(dirPath, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return watchError(dirPath, err)
	}
	return nil
}
