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
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/archive"
	"github.com/agbox/agbox/internal/bulk"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

const (
	// maxWatchedDirs bounds the directories of one watch: each costs the host
	// memory of its kernel, of which a user has a share.
	maxWatchedDirs = 4096
	// maxPending bounds the changes that wait to be sent.
	maxPending = 2048
	// maxChanges is about the most that is told at once, in bytes of paths.
	maxChanges = 64 << 10

	watchMask = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE |
		unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK
)

// watching is a transfer of changes. The queue of the kernel is its buffer: it
// is bounded, and says when it ran over.
type watching struct {
	*guestv1.WatchTransfer
	actor *actor
	root  string
	// fd is the descriptor of queue; to ask the file for it would make it blocking.
	queue *os.File
	fd    int
	// dirs holds the path of each watched directory by its watch.
	dirs     map[int32]string
	pending  []*guestv1.Change
	overflow string
	ended    bool
	// ours are the cookies of moves that put a written file in its place.
	ours map[uint32]bool
}

func newWatching(a *actor, req *guestv1.WatchTransfer) *watching {
	return &watching{WatchTransfer: req, actor: a, dirs: make(map[int32]string), ours: make(map[uint32]bool)}
}

func (w *watching) begin() (*guestv1.FileStat, error) {
	w.root = path.Clean(string(w.GetPath()))
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	// Not to be read in a thread that waits: the runtime's poller does it.
	w.queue, w.fd = os.NewFile(uintptr(fd), "inotify"), fd
	return nil, w.actor.do(func() error {
		dir, err := open(w.root, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer closeFD(dir)
		// The path may be a symbolic link; what it leads to is watched.
		wd, err := unix.InotifyAddWatch(fd, viaProc(dir), watchMask&^unix.IN_DONT_FOLLOW)
		if err != nil {
			return err
		}
		w.dirs[int32(wd)] = w.root
		if w.GetRecursive() {
			w.below(w.root, false)
		}
		return nil
	})
}

// add watches one more directory. What is not there any more is no failure.
func (w *watching) add(dir string) bool {
	if len(w.dirs) >= maxWatchedDirs {
		w.lost("There are more than %d directories below %s; those that come first are watched. Watch a smaller directory.", maxWatchedDirs, w.root)
		return false
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, watchMask)
	switch {
	case err == nil:
		w.dirs[int32(wd)] = dir
		return true
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		w.lost("This host does not let more directories be watched; some below %s are not. Raise fs.inotify.max_user_watches or watch a smaller directory.", w.root)
	case errors.Is(err, unix.EACCES):
		w.lost("The directory %s may not be read by this user and is not watched.", dir)
	}
	return false
}

// below watches all directories under one that is watched, those that are higher
// up first. Where that is new, what is found in it is told as made: it may have
// come before the watch. One directory is open at a time, however deep they are:
// the descriptors are those that commands are started with.
func (w *watching) below(dir string, told bool) {
	for next := []string{dir}; len(next) > 0; next = next[1:] {
		next = append(next, w.children(next[0], told)...)
	}
}

// children watches the directories in one, and returns those that are watched now.
func (w *watching) children(dir string, told bool) (dirs []string) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if !isGone(err) {
			w.lost("What is below the directory %s is not watched: %v.", dir, err)
		}
		return nil
	}
	defer f.Close() // only read
	for {
		list, err := f.ReadDir(256)
		for _, e := range list {
			full := path.Join(dir, e.Name())
			if told && !archive.IsTemp(e.Name()) {
				w.tell(guestv1.ChangeKind_CHANGE_KIND_CREATED, full, e.IsDir(), 0)
			}
			switch {
			case !e.IsDir():
			case len(full) > unix.PathMax-256:
				w.lost("The directories below %s are too deep to be watched.", dir)
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

// isGone tells whether a directory is not there any more.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func (w *watching) lost(format string, args ...any) {
	if w.overflow == "" {
		w.overflow = cut(fmt.Sprintf(format, args...))
	}
}

func (w *watching) tell(kind guestv1.ChangeKind, p string, dir bool, cookie uint32) {
	if len(w.pending) >= maxPending {
		w.lost("More changed in %s than could be told; look at it again.", w.root)
		return
	}
	w.pending = append(w.pending, &guestv1.Change{Kind: kind, Path: []byte(p), Directory: dir, Cookie: cookie})
}

// run sends changes as they come. While the daemon does not take them they wait
// in the kernel.
func (w *watching) run(ctx context.Context, p *wire.Pipe, _ *bulk.Meter) (*guestv1.TransferEnd, error) {
	defer context.AfterFunc(ctx, func() { _ = w.queue.Close() })()
	w.hungUp(p)
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

// hungUp ends the watch when the daemon goes away. The daemon sends nothing more,
// so there is nothing else to be read.
func (w *watching) hungUp(p *wire.Pipe) {
	go func() { // ends with the connection, which closes when run returns
		_, _ = p.Next(make([]byte, wire.MaxChunk))
		_ = w.queue.Close()
	}()
}

func (w *watching) send(p *wire.Pipe) error {
	batch := &guestv1.WatchBatch{Overflow: w.overflow}
	w.overflow = ""
	size := 0
	for len(w.pending) > 0 && size < maxChanges {
		batch.Changes = append(batch.Changes, w.pending[0])
		size += len(w.pending[0].GetPath()) + 32
		w.pending = w.pending[1:]
	}
	raw, err := proto.Marshal(batch)
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
		w.lost("More changed in %s than could be told; look at it again.", w.root)
		return
	case !known:
		return
	case mask&unix.IN_IGNORED != 0:
		delete(w.dirs, wd)
		return
	case name == "":
		w.self(dir, mask)
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
	}
	w.tell(kind, full, isDir, cookie)
	if !isDir || !w.GetRecursive() {
		return
	}
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		if w.add(full) {
			w.below(full, mask&unix.IN_CREATE != 0)
		}
	case mask&unix.IN_MOVED_FROM != 0:
		w.forget(full)
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

// self is a change of a watched directory itself. Those below the root are told
// by the directory that they are in.
func (w *watching) self(dir string, mask uint32) {
	if dir != w.root {
		return
	}
	switch {
	case mask&unix.IN_DELETE_SELF != 0:
		w.tell(guestv1.ChangeKind_CHANGE_KIND_REMOVED, dir, true, 0)
		w.ended = true
	case mask&unix.IN_MOVE_SELF != 0:
		w.tell(guestv1.ChangeKind_CHANGE_KIND_MOVED_OUT, dir, true, 0)
		w.ended = true
	case mask&unix.IN_ATTRIB != 0:
		w.tell(guestv1.ChangeKind_CHANGE_KIND_ATTRIBUTES, dir, true, 0)
	}
}

// forget ends the watches below a directory that went away.
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
