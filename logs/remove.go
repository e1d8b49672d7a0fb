package logs

import (
	"context"
	"errors"
	"fmt"

	"github.com/agbox/agbox/internal/trees"
)

// Remove deletes the files of an exec. Open readers can still read them. Missing files
// are not an error. ctx bounds the work if a container has replaced a file by a directory
// tree.
func (d *Dir) Remove(ctx context.Context, execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	// Remove stdout first: without it the log does not exist for readers.
	names := []string{
		StdoutName(execID), StderrName(execID), IndexName(execID),
		StatusName(execID), statusTemp(execID), JournalName(execID), BeatName(execID), ResultsName(execID), checkpointTemp(execID),
	}
	for _, suffix := range checkpointSuffixes {
		names = append(names, execID+suffix)
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
	return d.at(func(dirfd int) error { return trees.Remove(ctx, dirfd, name) })
}
