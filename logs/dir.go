package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/ids"
)

// Dir is a handle on the log directory of one sandbox. All files are opened relative to
// this handle, so replacing the path later has no effect. Its methods may be called from
// several goroutines.
type Dir struct {
	f    *os.File
	path string // for messages only

	// spares is nil unless KeepSpares was called.
	spares     chan *os.File
	spareOwner Owner
}

// OpenDir opens an existing directory. The last component of the path must not be a
// symbolic link. The components before it belong to the owner of the data directory, so
// they may be links.
func OpenDir(path string) (*Dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("directory %s: %w: %w", path, ErrNotExist, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s is not a directory: %w", path, ErrTampered)
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{f: os.NewFile(uintptr(fd), path), path: path}, nil
}

// Close releases the handle. Readers opened through it stay usable. Writers must be
// closed before.
func (d *Dir) Close() error { return errors.Join(d.dropSpares(), d.f.Close()) }

// Deleted reports whether the directory was removed since it was opened. It does not
// wait for the file system.
func (d *Dir) Deleted() bool {
	var st unix.Statx_t
	err := d.at(func(fd int) error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_NLINK, &st)
	})
	return err == nil && st.Mask&unix.STATX_NLINK != 0 && st.Nlink == 0
}

// at calls fn with the directory's descriptor. The descriptor stays open until fn
// returns.
func (d *Dir) at(fn func(fd int) error) error {
	conn, err := d.f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// openFile opens a regular file with one link in the directory. Anything else fails with
// ErrTampered. It never blocks: without O_NONBLOCK, opening a FIFO would wait for its
// other end, and opening a leased file for the lease holder.
func (d *Dir) openFile(name string, flags int) (*os.File, error) {
	var fd int
	err := d.at(func(dirfd int) error {
		// Check before opening: opening a device can have side effects.
		var st unix.Stat_t
		if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if err := checkRegular(&st); err != nil {
			return err
		}
		var err error
		if fd, err = openBeneath(dirfd, name, flags, 0); err != nil {
			return err
		}
		if err = unix.Fstat(fd, &st); err == nil {
			err = checkRegular(&st)
		}
		if err != nil {
			_ = unix.Close(fd)
		}
		return err
	})
	if err != nil {
		return nil, d.describe(name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openFor is openFile for a file of an exec, whose id it checks.
func (d *Dir) openFor(execID, name string, flags int) (*os.File, error) {
	if err := checkID(execID); err != nil {
		return nil, err
	}
	return d.openFile(name, flags)
}

// makeFor is makeFile for a file of an exec, whose id it checks.
func (d *Dir) makeFor(execID, name string, owner Owner) (diskFile, error) {
	if err := checkID(execID); err != nil {
		return diskFile{}, err
	}
	f, err := d.makeFile(name, owner)
	return diskFile{f}, err
}

// createFile returns a new empty file that belongs to owner. It uses a
// spare if there is one. If naming the spare fails, it makes the file: a real error
// recurs there.
func (d *Dir) createFile(name string, owner Owner) (*os.File, error) {
	if spare := d.takeSpare(owner); spare != nil {
		f, err := d.useSpare(spare, name)
		if err == nil {
			return f, nil
		}
	}
	return d.makeFile(name, owner)
}

// makeFile makes a new file that belongs to owner. If the owner is not the
// user of this process, the file gets its name last: the owner must never find a file
// that it cannot open.
func (d *Dir) makeFile(name string, owner Owner) (*os.File, error) {
	var fd int
	err := d.at(func(dirfd int) (err error) {
		if owner.isProcess() {
			if fd, err = openBeneath(dirfd, name, createFlags, owner.mode()); err != nil {
				return err
			}
			return owner.apply(fd) // a set-gid directory sets another group
		}
		fd, err = createFor(dirfd, name, owner)
		return err
	})
	if err != nil {
		return nil, d.describe(name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

const createFlags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL

// createFor makes a file under a hidden name, changes its owner, and renames it.
func createFor(dirfd int, name string, owner Owner) (int, error) {
	// Never the name of an exec's file: exec ids do not begin with a dot.
	hidden := "." + name + ".new"
	if err := unix.Unlinkat(dirfd, hidden, 0); err != nil && !errors.Is(err, unix.ENOENT) { // left by an interrupted call
		return -1, err
	}
	fd, err := openBeneath(dirfd, hidden, createFlags, owner.mode())
	if err != nil {
		return -1, err
	}
	if err = owner.apply(fd); err == nil {
		err = unix.Renameat2(dirfd, hidden, dirfd, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		_ = unix.Close(fd)
		_ = unix.Unlinkat(dirfd, hidden, 0)
		return -1, err
	}
	return fd, nil
}

// unlink removes a name that is not a directory. A missing name is not an error.
func (d *Dir) unlink(name string) error {
	return d.at(func(dirfd int) error {
		if err := unix.Unlinkat(dirfd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return d.describe(name, err)
		}
		return nil
	})
}

// describe adds the file's name and the error class to an error of a system call.
func (d *Dir) describe(name string, err error) error {
	var class error
	switch {
	case errors.Is(err, unix.ENOENT):
		class = ErrNotExist
	case errors.Is(err, unix.EEXIST):
		class = errdefs.ErrAlreadyExists
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EISDIR),
		errors.Is(err, unix.ENXIO), errors.Is(err, unix.EAGAIN):
		class = ErrTampered
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		class = errdefs.ErrPermissionDenied
	case isFull(err):
		class = errdefs.ErrResourceExhausted
	default:
		return fmt.Errorf("log file %s/%s: %w", d.path, name, err)
	}
	return fmt.Errorf("log file %s/%s: %w: %w", d.path, name, class, err)
}

// isFull reports whether err means that the disk or the user's quota is full.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// checkRegular refuses everything except a regular file with exactly one link. A second
// link could be a file of somebody else.
func checkRegular(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: it is %s", ErrTampered, kind(st.Mode))
	}
	if st.Nlink == 0 { // removed between two calls
		return unix.ENOENT
	}
	if st.Nlink != 1 {
		return fmt.Errorf("%w: it has %d hard links", ErrTampered, st.Nlink)
	}
	return nil
}

func kind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFSOCK:
		return "a socket"
	}
	return "a device"
}

// openBeneath opens one name in a directory. It follows no links and does not cross into
// another mount.
func openBeneath(dirfd int, name string, flags int, mode uint32) (int, error) {
	flags |= unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
	for {
		fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{
			Flags: uint64(flags),
			Mode:  uint64(mode),
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |
				unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			// Linux before 5.6, or a seccomp profile that blocks openat2.
			fd, err = unix.Openat(dirfd, name, flags, mode)
		}
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Owner is the owner of a new file. -1 keeps the user or group that the kernel sets.
type Owner struct {
	UID, GID int
	// GroupAccess gives the group the rights of the owner.
	GroupAccess bool
}

// mode is the mode of a new file.
func (o Owner) mode() uint32 {
	if o.GroupAccess {
		return 0o660
	}
	return 0o600
}

// KeepOwner leaves new files with the user and group of the process.
var KeepOwner = Owner{UID: -1, GID: -1}

// isProcess reports whether new files of this process belong to o anyway.
func (o Owner) isProcess() bool {
	return (o.UID < 0 || o.UID == os.Geteuid()) && (o.GID < 0 || o.GID == os.Getegid())
}

// apply changes the owner only if it differs, because chown can fail for an unprivileged
// process even if it changes nothing.
func (o Owner) apply(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if (o.UID < 0 || o.UID == int(st.Uid)) && (o.GID < 0 || o.GID == int(st.Gid)) {
		return nil
	}
	return unix.Fchown(fd, o.UID, o.GID)
}

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

// namesPerExec bounds the names that are read for each exec of a list. An exec has 4
// files; the others may be anything that the container has put there.
const namesPerExec = 8

// errListed ends a list that is long enough.
var errListed = errors.New("the list is long enough")

// ExecIDs lists the execs that have a status file, in no order: at most limit ids, all
// valid. more tells that the directory was not read to its end. The files may be
// anything: ReadStatus checks them.
func (d *Dir) ExecIDs(ctx context.Context, limit int) (list []string, more bool, err error) {
	var top *os.File
	err = d.at(func(fd int) (err error) {
		top, err = filesystem.Open(fd, ".")
		return err
	})
	if err != nil {
		return nil, false, d.describe(".", err)
	}
	defer func() { _ = top.Close() }()
	names := 0
	err = filesystem.Names(ctx, top, func(name string) error {
		if names++; names > limit*namesPerExec {
			return errListed
		}
		id, ok := strings.CutSuffix(name, suffixStatus)
		switch {
		case !ok || !ids.Valid(id):
			return nil
		case len(list) == limit:
			return errListed
		}
		list = append(list, id)
		return nil
	})
	if errors.Is(err, errListed) {
		return list, true, nil
	}
	return list, false, err
}

// file has the file operations that a Writer needs. Tests use failing ones.
type file interface {
	// WriteAt returns exactly how many bytes reached the file, also with an error.
	WriteAt(p []byte, off int64) (int, error)
	Truncate(size int64) error
	// Begin has the disk begin to write n bytes from off on, as far as it has not, and does not wait.
	Begin(off, n int64)
	Sync() error
	Close() error
}

// diskFile is an *os.File with another WriteAt: that of os.File returns 0 if only a part
// was written before the disk was full.
type diskFile struct{ *os.File }

// Begin does without what fails: Sync writes it.
func (f diskFile) Begin(off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// WriteAt must not run at the same time as Close.
func (f diskFile) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(int(f.Fd()), p[done:], off+int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
