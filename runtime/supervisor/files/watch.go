package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/workspace/archive"
)

const (
	// maxWatchedDirs bounds the directories of one watch: each uses kernel memory of the
	// host, and the number per user is limited.
	maxWatchedDirs = 4096
	// maxPending bounds the changes that wait to be sent.
	maxPending = 2048
	// maxChanges is about the maximum size of one batch of changes, in bytes of paths.
	maxChanges = 64 << 10

	watchMask = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE |
		unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK
)

// watching is a transfer that reports changes. The inotify queue of the kernel is its
// buffer: it is bounded and reports an overflow.
type watching struct {
	*guestv1.WatchTransfer
	actor *actor
	root  string
	// fd is the descriptor of queue. os.File.Fd would make it blocking.
	queue *os.File
	fd    int
	// dirs maps watch descriptors to the paths of the watched directories.
	dirs     map[int32]string
	pending  []*guestv1.Change
	overflow string
	ended    bool
	// ours are the cookies of renames that complete a write through this service.
	ours map[uint32]bool
}

func newWatching(a *actor, req *guestv1.WatchTransfer) *watching {
	return &watching{WatchTransfer: req, actor: a, dirs: make(map[int32]string), ours: make(map[uint32]bool)}
}

func (w *watching) begin() (*guestv1.FileStat, error) {
	w.root = path.Clean(string(w.GetPath()))
	fd, err := process.InotifyInit(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	// With os.NewFile the runtime's poller waits for events, so no thread blocks.
	w.queue, w.fd = os.NewFile(uintptr(fd), "inotify"), fd
	return nil, w.actor.do(func() error {
		dir, err := open(w.root, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer closeFD(dir)
		// If the path is a symbolic link, watch its target.
		wd, err := unix.InotifyAddWatch(fd, viaProc(dir), watchMask&^unix.IN_DONT_FOLLOW)
		if err != nil {
			return err
		}
		w.dirs[int32(wd)] = w.root
		if w.GetRecursive() {
			w.watchTree(w.root, false)
		}
		return nil
	})
}

// add watches one more directory. It returns false if it does not. A directory that no
// longer exists is not reported.
func (w *watching) add(dir string) bool {
	if len(w.dirs) >= maxWatchedDirs {
		w.reportLoss("There are more than %d directories below %s, so some of them are not watched. Watch a smaller directory.", maxWatchedDirs, w.root)
		return false
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, watchMask)
	switch {
	case err == nil:
		w.dirs[int32(wd)] = dir
		return true
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		w.reportLoss("The host's limit on watched directories is reached, so some below %s are not watched. Raise fs.inotify.max_user_watches or watch a smaller directory.", w.root)
	case errors.Is(err, unix.EACCES):
		w.reportLoss("The user has no permission to read the directory %s, so it is not watched.", dir)
	}
	return false
}

// watchTree watches all directories below a watched one, in breadth-first order. If
// reportCreated is set, the directory is new, and watchTree reports what it finds
// as created, because that may have happened before the watch existed. It opens
// only one directory at a time at any depth, because the supervisor needs its
// descriptors to start commands.
func (w *watching) watchTree(dir string, reportCreated bool) {
	for next := []string{dir}; len(next) > 0; next = next[1:] {
		next = append(next, w.watchChildren(next[0], reportCreated)...)
	}
}

// watchChildren watches the subdirectories of dir and returns those that it now watches.
func (w *watching) watchChildren(dir string, reportCreated bool) (dirs []string) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if !isGone(err) {
			w.reportLoss("The directories below %s are not watched: %v.", dir, err)
		}
		return nil
	}
	defer f.Close() // was only read
	for {
		list, err := f.ReadDir(256)
		for _, e := range list {
			full := path.Join(dir, e.Name())
			if reportCreated && !archive.IsTemp(e.Name()) {
				w.report(guestv1.ChangeKind_CHANGE_KIND_CREATED, full, e.IsDir(), 0)
			}
			switch {
			case !e.IsDir():
			case len(full) > unix.PathMax-256:
				w.reportLoss("The directories below %s are too deep to be watched.", dir)
			case w.add(full):
				dirs = append(dirs, full)
			case len(w.dirs) >= maxWatchedDirs:
				return dirs
			}
		}
		if err != nil {
			return dirs
		}
	}
}

// isGone reports whether a directory no longer exists.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func (w *watching) reportLoss(format string, args ...any) {
	if w.overflow == "" {
		w.overflow = cut(fmt.Sprintf(format, args...))
	}
}

func (w *watching) report(kind guestv1.ChangeKind, p string, dir bool, cookie uint32) {
	if len(w.pending) >= maxPending {
		w.reportLoss("Changes in %s were too many to report all of them; read the directory again.", w.root)
		return
	}
	w.pending = append(w.pending, &guestv1.Change{Kind: kind, Path: []byte(p), Directory: dir, Cookie: cookie})
}

// run sends changes as they happen. While the daemon does not read them, they wait in
// the kernel's queue.
func (w *watching) run(ctx context.Context, p *rpc.Pipe, _ *process.BulkMeter) (*guestv1.TransferEnd, error) {
	defer context.AfterFunc(ctx, func() { _ = w.queue.Close() })()
	w.closeOnHangUp(p)
	buf := make([]byte, 16<<10)
	for {
		for len(w.pending) > 0 || w.overflow != "" {
			if err := w.send(p); err != nil {
				return nil, err
			}
		}
		if w.ended {
			return new(guestv1.TransferEnd), p.End()
		}
		n, err := w.queue.Read(buf)
		if err != nil {
			return nil, context.Canceled // closed from outside
		}
		_ = w.actor.do(func() error { w.parse(buf[:n]); return nil })
	}
}

// closeOnHangUp ends the watch when the daemon closes the connection. The daemon sends
// nothing else, so any read result means the end.
func (w *watching) closeOnHangUp(p *rpc.Pipe) {
	go func() { // ends when the connection is closed, after run has returned
		_, _ = p.Next(make([]byte, rpc.MaxChunk))
		_ = w.queue.Close()
	}()
}

func (w *watching) send(p *rpc.Pipe) error {
	batch := &guestv1.WatchBatch{Overflow: w.overflow}
	w.overflow = ""
	size := 0
	for len(w.pending) > 0 && size < maxChanges {
		batch.Changes = append(batch.Changes, w.pending[0])
		size += len(w.pending[0].GetPath()) + 32
		w.pending = w.pending[1:]
	}
	raw, err := batch.MarshalVT()
	if err != nil {
		return err
	}
	_, err = p.Write(raw)
	return err
}

func (w *watching) parse(buf []byte) {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		cookie := binary.NativeEndian.Uint32(buf[8:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		if end > len(buf) {
			return
		}
		name, _, _ := strings.Cut(string(buf[unix.SizeofInotifyEvent:end]), "\x00")
		buf = buf[end:]
		w.event(wd, mask, cookie, name)
	}
}

func (w *watching) event(wd int32, mask, cookie uint32, name string) {
	dir, known := w.dirs[wd]
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		w.reportLoss("Changes in %s were too many to report all of them; read the directory again.", w.root)
		return
	case !known:
		return
	case mask&unix.IN_IGNORED != 0:
		delete(w.dirs, wd)
		return
	case name == "":
		w.rootEvent(dir, mask)
		return
	case archive.IsTemp(name):
		if mask&unix.IN_MOVED_FROM != 0 && len(w.ours) < maxPending {
			w.ours[cookie] = true
		}
		return
	}
	full, isDir := path.Join(dir, name), mask&unix.IN_ISDIR != 0
	kind := kindOf(mask)
	if mask&unix.IN_MOVED_TO != 0 && w.ours[cookie] {
		delete(w.ours, cookie)
		kind, cookie = guestv1.ChangeKind_CHANGE_KIND_WRITTEN, 0
		w.forgetMovedOut(full)
	}
	w.report(kind, full, isDir, cookie)
	if !isDir || !w.GetRecursive() {
		return
	}
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		if w.add(full) {
			w.watchTree(full, mask&unix.IN_CREATE != 0)
		}
	case mask&unix.IN_MOVED_FROM != 0:
		w.forget(full)
	}
}

// forgetMovedOut takes back that a file has moved away, if that was the last change and is not sent yet: it
// was exchanged with the one that replaces it.
func (w *watching) forgetMovedOut(p string) {
	if last := len(w.pending) - 1; last >= 0 && w.pending[last].GetKind() == guestv1.ChangeKind_CHANGE_KIND_MOVED_OUT && string(w.pending[last].GetPath()) == p {
		w.pending = w.pending[:last]
	}
}

func kindOf(mask uint32) guestv1.ChangeKind {
	switch {
	case mask&unix.IN_CREATE != 0:
		return guestv1.ChangeKind_CHANGE_KIND_CREATED
	case mask&unix.IN_CLOSE_WRITE != 0:
		return guestv1.ChangeKind_CHANGE_KIND_WRITTEN
	case mask&unix.IN_DELETE != 0:
		return guestv1.ChangeKind_CHANGE_KIND_REMOVED
	case mask&unix.IN_MOVED_FROM != 0:
		return guestv1.ChangeKind_CHANGE_KIND_MOVED_OUT
	case mask&unix.IN_MOVED_TO != 0:
		return guestv1.ChangeKind_CHANGE_KIND_MOVED_IN
	}
	return guestv1.ChangeKind_CHANGE_KIND_ATTRIBUTES
}

// rootEvent reports a change of the root itself. Changes of the other watched directories
// are reported by the events of their parents.
func (w *watching) rootEvent(dir string, mask uint32) {
	if dir != w.root {
		return
	}
	switch {
	case mask&unix.IN_DELETE_SELF != 0:
		w.report(guestv1.ChangeKind_CHANGE_KIND_REMOVED, dir, true, 0)
		w.ended = true
	case mask&unix.IN_MOVE_SELF != 0:
		w.report(guestv1.ChangeKind_CHANGE_KIND_MOVED_OUT, dir, true, 0)
		w.ended = true
	case mask&unix.IN_ATTRIB != 0:
		w.report(guestv1.ChangeKind_CHANGE_KIND_ATTRIBUTES, dir, true, 0)
	}
}

// forget removes the watches at and below a directory that was moved away.
func (w *watching) forget(dir string) {
	for wd, p := range w.dirs {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
			delete(w.dirs, wd)
		}
	}
}

func (w *watching) close() {
	if w.queue != nil {
		_ = w.queue.Close()
	}
}
