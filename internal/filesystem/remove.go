// Package filesystem works on files that a container or another user can write: it removes
// and reads them, grants rights on them and tells them apart. It also makes temporary folders.
// Removing follows no links, and its use of memory and descriptors does not grow with what it
// finds.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// listBatch is the maximum number of names of a directory held at a time.
const listBatch = 512

// Selection says what to remove from a directory.
type Selection uint8

// The selections.
const (
	// Everything removes all names.
	Everything Selection = iota
	// Directories removes directories with all that is in them, and keeps other files.
	Directories
)

// Remove removes a name of any kind from an open directory, with everything below it. A
// missing name is not an error. ctx bounds the work if a container can still add files.
func Remove(ctx context.Context, dirfd int, name string) error {
	isDir, err := unlinkAny(dirfd, name)
	if err != nil || !isDir {
		return err
	}
	return removeTree(ctx, dirfd, name)
}

// RemoveAll is Remove for a path. Its last element is not followed if it is a link.
func RemoveAll(ctx context.Context, path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	if err := Remove(ctx, int(parent.Fd()), filepath.Base(path)); err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// unlinkAny removes a file or an empty directory. isDir reports a directory that is not
// empty.
func unlinkAny(dirfd int, name string) (isDir bool, err error) {
	err = unix.Unlinkat(dirfd, name, 0)
	// Linux returns EISDIR. POSIX allows EPERM, which also has other reasons.
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		rmErr := unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
		if errors.Is(rmErr, unix.ENOTEMPTY) || errors.Is(rmErr, unix.EEXIST) {
			return true, nil
		}
		if !errors.Is(rmErr, unix.ENOTDIR) {
			err = rmErr
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return false, err
}

// removeTree removes a directory that is not empty.
func removeTree(ctx context.Context, parent int, name string) error {
	top, err := Open(parent, name)
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	if err := empty(ctx, top, Everything); err != nil {
		return err
	}
	isDir, err := unlinkAny(parent, name)
	if err == nil && isDir {
		err = unix.ENOTEMPTY // somebody still writes here
	}
	return err
}

// empty removes what is in a directory. The container chooses the depth, so there is no
// recursion: subdirectories are moved up into the top directory until nothing is nested.
func empty(ctx context.Context, top *os.File, what Selection) error {
	topFD, moved := int(top.Fd()), 0
	for {
		left := 0
		err := Names(ctx, top, func(entry string) error {
			if what == Directories && !isDirectory(topFD, entry) {
				return nil
			}
			left++
			isDir, err := unlinkAny(topFD, entry)
			if err != nil || !isDir {
				return err
			}
			return flatten(ctx, topFD, entry, &moved)
		})
		if err != nil || left == 0 {
			return err
		}
	}
}

func isDirectory(dirfd int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// flatten empties a directory in top and removes it. It moves subdirectories that are not
// empty up into top.
func flatten(ctx context.Context, top int, name string, moved *int) error {
	sub, err := Open(top, name)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	subFD := int(sub.Fd())
	err = Names(ctx, sub, func(entry string) error {
		isDir, err := unlinkAny(subFD, entry)
		if err != nil || !isDir {
			return err
		}
		for {
			*moved++
			to := ".removing-" + strconv.Itoa(*moved)
			err := unix.Renameat2(subFD, entry, top, to, unix.RENAME_NOREPLACE)
			if !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	_, err = unlinkAny(top, name) // a directory that is not empty is handled in the next round
	return err
}

// Open opens a directory below an open one. It follows no links and does not cross into
// another mount.
func Open(parent int, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	for {
		fd, err := unix.Openat2(parent, name, &unix.OpenHow{
			Flags: flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			// Linux before 5.6, or a seccomp profile that blocks openat2.
			fd, err = unix.Openat(parent, name, flags, 0)
		}
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

// Names calls fn for each name in a directory, from its start, until fn fails or ctx ends.
// It holds a bounded number of names at a time.
func Names(ctx context.Context, dir *os.File, fn func(name string) error) error {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(listBatch)
		for _, name := range names {
			if err := fn(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Removable reports whether a folder of a sandbox has only what an ordinary user can
// remove: it belongs to this user, who has all rights in it, and there are no folders in
// it. agbox makes none, and root in the sandbox can make one that other users cannot look
// into. A missing folder is removable.
func Removable(path string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if !info.IsDir() {
		return true, nil
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o700 != 0o700 {
		return false, nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }()
	for {
		entries, err := dir.ReadDir(listBatch)
		for _, entry := range entries {
			if entry.IsDir() {
				return false, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// Reclaim gives a folder to a user and removes from it what the user may be unable to
// remove. The caller has the rights of root over what is in the folder. With a negative
// uid the folder has its user already. A missing folder is not an error.
func Reclaim(ctx context.Context, path string, uid, gid int, what Selection) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	folder := os.NewFile(uintptr(fd), path)
	defer func() { _ = folder.Close() }()
	if uid >= 0 {
		if err := errors.Join(folder.Chmod(0o700), folder.Chown(uid, gid)); err != nil {
			return err
		}
	}
	if err := empty(ctx, folder, what); err != nil {
		return fmt.Errorf("empty %s: %w", path, err)
	}
	return nil
}
