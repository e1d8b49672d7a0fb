package archive

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// place is the path of open directories from the target to the current entry. Each was
// opened relative to its parent, without following symbolic links.
type place struct {
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

// maxTimes bounds place.times.
const maxTimes = 8 << 10

func newPlace(fd int) *place {
	return &place{levels: []level{{fd: fd}}, times: make(map[inode]times)}
}

// close sets the metadata of all open directories but the target, and closes them.
func (p *place) close() error { return p.leave(0) }

// top is the deepest open directory.
func (p *place) top() *level { return &p.levels[len(p.levels)-1] }

// enter opens a directory below the target and creates missing ones. The returned
// descriptor is valid until the next call.
func (p *place) enter(parts []string, name string) (int, error) {
	same := 0
	for same < len(parts) && same+1 < len(p.levels) && p.levels[same+1].name == parts[same] {
		same++
	}
	if err := p.leave(same); err != nil {
		return -1, err
	}
	for _, part := range parts[same:] {
		fd, err := down(p.top().fd, part)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(p.top().fd, part, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				fd, err = down(p.top().fd, part)
			}
		}
		if err != nil {
			return -1, explainDown(p.top().fd, part, name, err)
		}
		p.push(part, fd, nil)
	}
	return p.top().fd, nil
}

func (p *place) push(name string, fd int, last *finish) {
	if last == nil {
		last = p.known(fd)
	}
	p.levels = append(p.levels, level{name: name, fd: fd, last: last})
}

// known returns the time to restore for a directory that was closed before; nil if
// there is none.
func (p *place) known(fd int) *finish {
	if len(p.times) == 0 {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	if t, ok := p.times[inode{st.Dev, st.Ino}]; ok {
		return &finish{mode: noMode, uid: -1, gid: -1, times: t}
	}
	return nil
}

// noMode means that the permissions are not changed.
const noMode = ^uint32(0)

// leave closes directories until only depth directories below the target are open.
func (p *place) leave(depth int) error {
	var first error
	for len(p.levels) > depth+1 {
		l := *p.top()
		p.levels = p.levels[:len(p.levels)-1]
		if l.last != nil {
			err := p.settle(l)
			if first == nil {
				first = failed("finish the directory", l.name, err)
			}
		}
		_ = unix.Close(l.fd)
	}
	return first
}

// settle sets owner, mode and times of a directory, in this order, because a change of
// the owner clears mode bits.
func (p *place) settle(l level) error {
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
	if err := unix.Fstat(l.fd, &st); err == nil && len(p.times) < maxTimes {
		p.times[inode{st.Dev, st.Ino}] = f.times
	}
	return tolerate(unix.UtimesNanoAt(p.top().fd, l.name, f.times[:], unix.AT_SYMLINK_NOFOLLOW))
}

// down opens a directory in a directory. It fails on anything else.
func down(dir int, name string) (int, error) {
	return openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// explainDown returns the error for a directory of name that cannot be opened or created.
func explainDown(dir int, part, name string, err error) error {
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
// change the open directories of place. The caller closes the descriptor.
func (p *place) find(parts []string, name string) (int, error) {
	fd, err := unix.FcntlInt(uintptr(p.levels[0].fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for _, part := range parts[:len(parts)-1] {
		next, err := down(fd, part)
		if err != nil {
			err = explainDown(fd, part, name, err)
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
