package notify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

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
