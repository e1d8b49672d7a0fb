package archive

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// dirStack is the path of open directories from the target to the current entry. Each was
// opened relative to its parent, without following symbolic links.
type dirStack struct {
	levels []level
	// times has the times that were set on closed directories. If the archive returns to
	// such a directory, a new file in it changes its time, which must be set again. Only
	// archives with unsorted entries need this. The map is bounded by maxTimes.
	times map[inode]times
}

type times [2]unix.Timespec

// level is one open directory.
type level struct {
	name string
	fd   int
	// last is the metadata to set before the directory is closed; nil means none.
	last *finish
}

// finish is the metadata in the entry of a directory.
type finish struct {
	mode     uint32
	uid, gid int
	times    times
	// made is true if the unpacker created the directory.
	made bool
}

// maxTimes bounds dirStack.times.
const maxTimes = 8 << 10

func newDirStack(fd int) *dirStack {
	return &dirStack{levels: []level{{fd: fd}}, times: make(map[inode]times)}
}

// close sets the metadata of all open directories but the target, and closes them.
func (s *dirStack) close() error { return s.leave(0) }

// top is the deepest open directory.
func (s *dirStack) top() *level { return &s.levels[len(s.levels)-1] }

// enter opens a directory below the target and creates missing ones. The returned
// descriptor is valid until the next call.
func (s *dirStack) enter(parts []string, name string) (int, error) {
	same := 0
	for same < len(parts) && same+1 < len(s.levels) && s.levels[same+1].name == parts[same] {
		same++
	}
	if err := s.leave(same); err != nil {
		return -1, err
	}
	for _, part := range parts[same:] {
		fd, err := openDir(s.top().fd, part)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(s.top().fd, part, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				fd, err = openDir(s.top().fd, part)
			}
		}
		if err != nil {
			return -1, openError(s.top().fd, part, name, err)
		}
		s.push(part, fd, nil)
	}
	return s.top().fd, nil
}

func (s *dirStack) push(name string, fd int, last *finish) {
	if last == nil {
		last = s.timesToRestore(fd)
	}
	s.levels = append(s.levels, level{name: name, fd: fd, last: last})
}

// timesToRestore returns the time to restore for a directory that was closed before; nil if
// there is none.
func (s *dirStack) timesToRestore(fd int) *finish {
	if len(s.times) == 0 {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	if t, ok := s.times[inode{st.Dev, st.Ino}]; ok {
		return &finish{mode: noMode, uid: -1, gid: -1, times: t}
	}
	return nil
}

// noMode means that the permissions are not changed.
const noMode = ^uint32(0)

// leave closes directories until only depth directories below the target are open.
func (s *dirStack) leave(depth int) error {
	var first error
	for len(s.levels) > depth+1 {
		l := *s.top()
		s.levels = s.levels[:len(s.levels)-1]
		if l.last != nil {
			err := s.setMetadata(l)
			if first == nil {
				first = failed("finish the directory", l.name, err)
			}
		}
		_ = unix.Close(l.fd)
	}
	return first
}

// setMetadata sets owner, mode and times of a directory, in this order, because a change of
// the owner clears mode bits.
func (s *dirStack) setMetadata(l level) error {
	f := l.last
	tolerate := func(err error) error {
		if !f.made && errors.Is(err, unix.EPERM) {
			return nil // the directory existed before and belongs to another user
		}
		return err
	}
	if f.uid >= 0 || f.gid >= 0 {
		if err := tolerate(unix.Fchown(l.fd, f.uid, f.gid)); err != nil {
			return err
		}
	}
	if f.mode != noMode {
		if err := tolerate(unix.Fchmod(l.fd, f.mode)); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err == nil && len(s.times) < maxTimes {
		s.times[inode{st.Dev, st.Ino}] = f.times
	}
	return tolerate(unix.UtimesNanoAt(s.top().fd, l.name, f.times[:], unix.AT_SYMLINK_NOFOLLOW))
}

// openDir opens a directory in a directory. It fails on anything else.
func openDir(dir int, name string) (int, error) {
	return openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// openError returns the error for a directory of name that cannot be opened or created.
func openError(dir int, part, name string, err error) error {
	var st unix.Stat_t
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		if unix.Fstatat(dir, part, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return refuse(name, "leads through the symbolic link %s", show(part))
		}
		return &Failure{Op: "make", Name: name, Err: unix.ENOTDIR}
	}
	return failed("make", name, err)
}

// find opens the directory that contains the last component of a name. It does not
// change the stack. The caller closes the descriptor.
func (s *dirStack) find(parts []string, name string) (int, error) {
	fd, err := unix.FcntlInt(uintptr(s.levels[0].fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for _, part := range parts[:len(parts)-1] {
		next, err := openDir(fd, part)
		if err != nil {
			err = openError(fd, part, name, err)
			_ = unix.Close(fd)
			return -1, err
		}
		_ = unix.Close(fd)
		fd = next
	}
	return fd, nil
}

func timesOf(t time.Time) times {
	if t.IsZero() || t.Unix() == 0 && t.Nanosecond() == 0 {
		t = time.Unix(0, 0)
	}
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	return times{{Nsec: unix.UTIME_OMIT}, ts}
}
