package archive

import (
	"archive/tar"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// regular creates a file. The file is new, so nothing else has it open or under another
// name, and writing to it cannot change an existing file. An existing file with the
// same name is replaced when the new one is complete.
func (u *unpacker) regular(h *tar.Header, dir []string, base string) error {
	sparse := isSparse(h)
	if h.Size < 0 || sparse && h.Size > maxSparse {
		return refuse(h.Name, "claims a size of %d bytes", h.Size)
	}
	// Read the first bytes before Do, which must not wait for the sender.
	n, err := io.ReadFull(u.tar, u.buf[:min(h.Size, small)])
	if err != nil && !errors.Is(err, io.EOF) {
		return u.damaged(err)
	}
	f := &file{base: base, fd: -1, sparse: sparse}
	whole := int64(n) == h.Size
	err = u.do(func() error {
		at, err := u.dirs.enter(dir, h.Name)
		if err != nil {
			return err
		}
		f.at = at
		if err := f.create(); err != nil {
			return err
		}
		if err := f.write(u.buf[:n]); err != nil || !whole {
			return err
		}
		return u.finish(h, f)
	})
	if err == nil && !whole {
		u.o.Progress(0, int64(n))
		u.done.Bytes += int64(n)
		n = 0
		err = u.large(h, f)
	}
	if err != nil {
		_ = u.o.Do.run(f.discard)
		return err
	}
	return u.count(1, int64(n), u.o.Do.run(f.close))
}

func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// large writes the rest of a file that is larger than the first piece.
func (u *unpacker) large(h *tar.Header, f *file) error {
	for f.size < h.Size {
		piece := u.buf[:min(h.Size-f.size, chunk)]
		if _, err := io.ReadFull(u.tar, piece); err != nil {
			return u.damaged(io.ErrUnexpectedEOF)
		}
		if err := u.do(func() error { return f.write(piece) }); err != nil {
			return err
		}
		u.o.Progress(0, int64(len(piece)))
		u.done.Bytes += int64(len(piece))
	}
	return u.o.Do.run(func() error { return u.finish(h, f) })
}

// finish sets the metadata of a written file and gives it its final name. The owner is
// set first, because changing it clears mode bits and capabilities.
func (u *unpacker) finish(h *tar.Header, f *file) error {
	if f.holes {
		if err := unix.Ftruncate(f.fd, f.size); err != nil {
			return err
		}
	}
	if uid, gid := u.owner(h); uid >= 0 {
		if err := unix.Fchown(f.fd, uid, gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(f.fd, u.mode(h)); err != nil {
		return err
	}
	setXattrs(f.fd, h.PAXRecords, u.o.KeepPrivileges)
	t := timesOf(h.ModTime)
	if err := unix.UtimesNanoAt(f.at, f.name(), t[:], unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := u.o.Wanted(); err != nil {
		return err
	}
	return f.publish()
}

// file is a regular file that is being unpacked.
type file struct {
	// at is the directory of the file. It is valid until the next entry.
	at   int
	base string
	// temp is the file's temporary name, used if another file has the name base; that one
	// is replaced at the end. It is empty if the file has the name base from the start.
	temp   string
	fd     int
	size   int64
	sparse bool
	// holes is true if the file has a hole, which may be its end.
	holes bool
}

func (f *file) name() string {
	if f.temp != "" {
		return f.temp
	}
	return f.base
}

func (f *file) create() error {
	err := f.open()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if unix.Fstatat(f.at, f.base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EISDIR
	}
	f.temp = TempName()
	return f.open()
}

func (f *file) open() (err error) {
	f.fd, err = openat(f.at, f.name(), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	return err
}

// publish gives the file its final name.
func (f *file) publish() error {
	if f.temp == "" {
		return nil
	}
	if err := unix.Renameat(f.at, f.temp, f.at, f.base); err != nil {
		return err
	}
	f.temp = ""
	return nil
}

// write appends p. A whole chunk of zeros becomes a hole, and in a sparse file any piece of
// zeros. A file of holes can have terabytes; a sandbox makes one in no time, and a tar
// archive has it as zeros.
func (f *file) write(p []byte) error {
	defer func() { f.size += int64(len(p)) }()
	if (f.sparse || len(p) == chunk) && isZero(p) {
		f.holes = true
		_, err := unix.Seek(f.fd, int64(len(p)), io.SeekCurrent)
		return err
	}
	return writeFull(f.fd, p)
}

func (f *file) close() error {
	fd := f.fd
	f.fd = -1
	return unix.Close(fd)
}

// discard removes an unfinished file.
func (f *file) discard() error {
	if f.fd < 0 {
		return nil
	}
	var ours, there unix.Stat_t
	if unix.Fstat(f.fd, &ours) == nil && unix.Fstatat(f.at, f.name(), &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		ours.Ino == there.Ino && ours.Dev == there.Dev {
		_ = unix.Unlinkat(f.at, f.name(), 0)
	}
	return f.close()
}
