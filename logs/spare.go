package logs

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A spare is an open, empty file on the log directory's file system. It has its owner
// already, but no name yet. Making a file can take many times longer than naming one:
// ext4 skips every inode that was freed in the last minutes. With spares, no caller waits
// for that.
//
// Because a spare has no name, nobody sees it, the container cannot replace it, and the
// kernel frees it when its process ends. Nothing depends on spares: if there is none, or
// it cannot be named, a file is made.

// KeepSpares sets the maximum number of spares and their owner. It must be called before
// the first file is made, and at most once.
func (d *Dir) KeepSpares(count int, owner Owner) {
	d.spares, d.spareOwner = make(chan *os.File, count), owner
}

// Spares returns the number of spares.
func (d *Dir) Spares() int { return len(d.spares) }

// AddSpare makes one spare. It returns false if there are enough. After an error there
// will be no spares for now: the disk is full, or its file system does not support files
// without a name. Calls must not overlap with each other or with Close.
func (d *Dir) AddSpare() (bool, error) {
	if len(d.spares) == cap(d.spares) {
		return false, nil
	}
	var fd int
	err := d.at(func(dirfd int) (err error) {
		if fd, err = openBeneath(dirfd, ".", unix.O_WRONLY|unix.O_TMPFILE, d.spareOwner.mode()); err != nil {
			return err
		}
		if err = d.spareOwner.apply(fd); err != nil {
			_ = unix.Close(fd)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("making a spare file in %s: %w", d.path, err)
	}
	d.spares <- os.NewFile(uintptr(fd), "spare")
	return true, nil
}

// takeSpare returns a spare that belongs to owner, or nil if there is none.
func (d *Dir) takeSpare(owner Owner) *os.File {
	if owner != d.spareOwner {
		return nil
	}
	select {
	case f := <-d.spares:
		return f
	default:
		return nil
	}
}

// dropSpares frees all spares.
func (d *Dir) dropSpares() error {
	var errs []error
	for {
		f := d.takeSpare(d.spareOwner)
		if f == nil {
			return errors.Join(errs...)
		}
		errs = append(errs, f.Close())
	}
}

// nameSpare gives a spare its name. It fails if the name exists.
func (d *Dir) nameSpare(f *os.File, name string) error {
	fd := int(f.Fd())
	return d.at(func(dirfd int) error {
		err := unix.Linkat(fd, "", dirfd, name, unix.AT_EMPTY_PATH)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
			// That needs a capability before Linux 6.10. This does not, but it needs
			// /proc.
			err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), dirfd, name, unix.AT_SYMLINK_FOLLOW)
		}
		return err
	})
}

// useSpare names a spare and opens it again by that name, because inotify reports writes
// under the name by which the file was opened. It closes the spare.
func (d *Dir) useSpare(spare *os.File, name string) (*os.File, error) {
	defer func() { _ = spare.Close() }()
	if err := d.nameSpare(spare, name); err != nil {
		return nil, err
	}
	return d.reopenSpare(spare, name)
}

// reopenSpare opens a named spare. If that fails, it removes the name.
func (d *Dir) reopenSpare(spare *os.File, name string) (*os.File, error) {
	f, err := d.openFile(name, unix.O_WRONLY)
	if err == nil {
		if err = sameFile(spare, f); err == nil {
			return f, nil
		}
		err = errors.Join(err, f.Close())
	}
	return nil, errors.Join(err, d.unlink(name))
}

// sameFile fails if the container has replaced file a.
func sameFile(a, b *os.File) error {
	var st [2]unix.Stat_t
	if err := errors.Join(unix.Fstat(int(a.Fd()), &st[0]), unix.Fstat(int(b.Fd()), &st[1])); err != nil {
		return err
	}
	if st[0].Dev != st[1].Dev || st[0].Ino != st[1].Ino {
		return fmt.Errorf("%w: it is another file than the one just made", ErrTampered)
	}
	return nil
}
