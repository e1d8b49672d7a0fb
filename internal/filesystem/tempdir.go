// This file makes temporary folders that do not outlive their process for long: a
// process that is killed cannot remove its own, so the next one of the same user does.
//
// A process holds a lock (flock) on each of its folders as long as it uses it. A folder of
// ours without a lock is left over.

package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
)

// tempPrefix begins the name of each folder.
const tempPrefix = "agbox-"

// tempKinds are what the folders are for: the next part of their names.
var tempKinds = []string{"work", "merge", "branch", "patch", "preset"}

// TempDir is a temporary folder of this process.
type TempDir struct {
	// Path is absolute.
	Path string
	// lock is the open folder.
	lock *os.File
}

// swept is once per process, so making many folders costs nothing.
var swept sync.Once

// NewTempDir makes a folder for a use, which is one of kinds, in the data folder of agbox: os.TempDir
// may be in memory. Only its user may enter it. Before the first one it removes what killed
// processes have left. Remove must be called.
func NewTempDir(kind string) (*TempDir, error) {
	install, err := paths.FromEnv()
	if err != nil {
		return nil, err
	}
	top := install.Scratch()
	if err := os.MkdirAll(top, 0o700); err != nil {
		return nil, err
	}
	swept.Do(func() { SweepTempDirs(top) })
	for {
		path, err := os.MkdirTemp(top, tempPrefix+kind+"-")
		if err != nil {
			return nil, err
		}
		lock, err := claim(path)
		if err == nil {
			return &TempDir{Path: path, lock: lock}, nil
		}
		if !errors.Is(err, errSwept) {
			return nil, errors.Join(err, os.RemoveAll(path))
		}
	}
}

// Remove removes the folder with all that is in it.
func (d *TempDir) Remove() {
	_ = os.RemoveAll(d.Path) // if it fails, a later process tries again
	_ = d.lock.Close()
}

// kept is how much of a disk New's folders leave free, in bytes: the database of the daemon needs
// some.
const kept = 64 << 20

// Room fails with ENOSPC if the disk has no room for more bytes.
func (d *TempDir) Room(bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.lock.Fd()), &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; free-kept < bytes {
		return fmt.Errorf("%d bytes more, and %s has %d free, of which %d stay so: %w", bytes, filepath.Dir(d.Path), free, kept, unix.ENOSPC)
	}
	return nil
}

// errSwept is the error for a folder that another process has removed before it was locked.
var errSwept = errors.New("the folder was removed before it was locked")

// claim locks a new folder. A file system without locks has none: then no sweep removes it.
func claim(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, errSwept
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	lock := os.NewFile(uintptr(fd), path)
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(fd, unix.LOCK_EX)
	}
	if err != nil {
		return lock, nil
	}
	held, err := lock.Stat()
	if now, gone := os.Lstat(path); err == nil && (gone != nil || !os.SameFile(held, now)) {
		return nil, errors.Join(errSwept, lock.Close())
	}
	return lock, nil
}

// SweepTempDirs removes the folders in a folder that killed processes of this user have left. It
// follows no link, and leaves alone what it cannot lock or remove.
func SweepTempDirs(in string) {
	top, err := os.Open(in)
	if err != nil {
		return
	}
	defer top.Close() // only read
	_ = Names(context.Background(), top, func(name string) error {
		if ours(name) {
			sweep(int(top.Fd()), name)
		}
		return nil
	})
}

// ours reports whether New gives such names.
func ours(name string) bool {
	for _, kind := range tempKinds {
		if digits, ok := strings.CutPrefix(name, tempPrefix+kind+"-"); ok && digits != "" && strings.Trim(digits, "0123456789") == "" {
			return true
		}
	}
	return false
}

// sweep removes one folder if it is this user's and nobody holds it.
func sweep(top int, name string) {
	fd, err := unix.Openat(top, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), filepath.Base(name))
	defer dir.Close() // releases the lock
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o7777 != 0o700 || unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	_ = Remove(context.Background(), top, name) // the next sweep tries again
}
