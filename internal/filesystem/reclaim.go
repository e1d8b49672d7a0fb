package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

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
