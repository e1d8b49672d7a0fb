package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// listBatch is the maximum number of names of a directory held at a time.
const listBatch = 512

// Remove deletes the files of an exec. Open readers can still read them. Missing files
// are not an error. ctx bounds the work if a container has replaced a file by a directory
// tree.
func (d *Dir) Remove(ctx context.Context, execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	// Remove stdout first: without it the log does not exist for readers.
	names := [...]string{
		StdoutName(execID), StderrName(execID), IndexName(execID),
		StatusName(execID), statusTemp(execID),
	}
	var errs []error
	for _, name := range names {
		if err := d.removeEntry(ctx, name); err != nil {
			errs = append(errs, d.describe(name, err))
		}
	}
	return errors.Join(errs...)
}

// RemoveAll deletes the log directory of a sandbox beneath root, with everything that its
// container has put there. It follows no links, and its use of memory and descriptors
// does not grow with what it finds. A missing directory is not an error. Either the
// container is gone, or ctx must bound the call, because a running container can add
// files faster than they are removed.
func RemoveAll(ctx context.Context, root, sandboxID string) error {
	if err := checkID(sandboxID); err != nil {
		return err
	}
	d, err := OpenDir(root)
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if err := d.removeEntry(ctx, sandboxID); err != nil {
		return fmt.Errorf("removing the logs of sandbox %s: %w", sandboxID, d.describe(sandboxID, err))
	}
	return nil
}

// removeEntry removes a name of any kind.
func (d *Dir) removeEntry(ctx context.Context, name string) error {
	return d.at(func(dirfd int) error {
		isDir, err := unlinkAny(dirfd, name)
		if err != nil || !isDir {
			return err
		}
		return removeTree(ctx, dirfd, name)
	})
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

// removeTree removes a directory that is not empty. The container chooses the depth, so
// there is no recursion: subdirectories are moved up into the top directory until nothing
// is nested.
func removeTree(ctx context.Context, parent int, name string) error {
	top, err := openTree(parent, name)
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	topFD := int(top.Fd())
	moved := 0
	for {
		left, err := eachName(ctx, top, func(entry string) error {
			isDir, err := unlinkAny(topFD, entry)
			if err != nil || !isDir {
				return err
			}
			return flatten(ctx, topFD, entry, &moved)
		})
		if err != nil {
			return err
		}
		if left == 0 {
			break
		}
	}
	isDir, err := unlinkAny(parent, name)
	if err == nil && isDir {
		err = unix.ENOTEMPTY // somebody still writes here
	}
	return err
}

// flatten empties a directory in top and removes it. It moves subdirectories that are not
// empty up into top.
func flatten(ctx context.Context, top int, name string, moved *int) error {
	sub, err := openTree(top, name)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	subFD := int(sub.Fd())
	_, err = eachName(ctx, sub, func(entry string) error {
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

// openTree opens a directory for removal.
func openTree(parent int, name string) (*os.File, error) {
	fd, err := openBeneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// eachName calls fn for each name in a directory, from its start, and returns how many
// there were.
func eachName(ctx context.Context, dir *os.File, fn func(name string) error) (int, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	count := 0
	for {
		if err := ctx.Err(); err != nil {
			return count, err
		}
		names, err := dir.Readdirnames(listBatch)
		for _, name := range names {
			count++
			if err := fn(name); err != nil {
				return count, err
			}
		}
		if errors.Is(err, io.EOF) {
			return count, nil
		}
		if err != nil {
			return count, err
		}
	}
}
