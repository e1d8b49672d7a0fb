package logs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
)

// Remove deletes the files of an exec. Open readers can still read them. Missing files
// are not an error. ctx bounds the work if a container has replaced a file by a directory
// tree.
func (d *Dir) Remove(ctx context.Context, execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	names := []string{
		StatusName(execID), statusTemp(execID), JournalName(execID), BeatName(execID), ResultsName(execID), checkpointTemp(execID),
	}
	for _, suffix := range checkpointSuffixes {
		names = append(names, execID+suffix)
	}
	return d.removeEach(ctx, append(outputNames(execID), names...))
}

// RemoveOutput deletes the files of an exec that have its output. Open readers can still read
// them.
func (d *Dir) RemoveOutput(ctx context.Context, execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	return d.removeEach(ctx, outputNames(execID))
}

// outputNames begin with stdout: without it the log does not exist for readers.
func outputNames(execID string) []string {
	return []string{StdoutName(execID), StderrName(execID), IndexName(execID)}
}

func (d *Dir) removeEach(ctx context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		if err := d.removeEntry(ctx, name); err != nil {
			errs = append(errs, d.describe(name, err))
		}
	}
	return errors.Join(errs...)
}

// Slim deletes the files of an ended exec of a deleted sandbox but those with its output: its
// record has the rest, and nobody can ask for more. Of one that wrote nothing, no file stays.
// The status goes last, so ExecIDs lists what an interrupted Slim has left.
func (d *Dir) Slim(ctx context.Context, execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	names := []string{JournalName(execID), BeatName(execID), ResultsName(execID), checkpointTemp(execID), statusTemp(execID)}
	for _, suffix := range checkpointSuffixes {
		names = append(names, execID+suffix)
	}
	output := outputNames(execID)
	if !slices.ContainsFunc(output, d.hasContent) {
		names = append(names, output...)
	}
	for _, name := range append(names, StatusName(execID)) {
		if err := d.removeEntry(ctx, name); err != nil {
			return d.describe(name, err)
		}
	}
	return nil
}

// hasContent reports whether a name is a file that is not empty, or anything else than a file.
func (d *Dir) hasContent(name string) (has bool) {
	err := d.at(func(dirfd int) error {
		var st unix.Stat_t
		err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		has = err == nil && (st.Size > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG)
		return err
	})
	return has || err != nil && !errors.Is(err, unix.ENOENT)
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
	return d.at(func(dirfd int) error { return filesystem.Remove(ctx, dirfd, name) })
}
