package archive

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

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
