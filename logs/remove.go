package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/ids"
)

// Remove deletes the files of an exec. Open readers can still read them. Missing files
// are not an error. ctx bounds the work if a container has replaced a file by a directory
// tree.
func (d *Dir) Remove(ctx context.Context, execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	names := append(outputNames(execID), StatusName(execID), statusTemp(execID))
	return d.removeEach(ctx, append(names, agentNames(execID)...))
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

// agentNames are those of the files that only the exec of an agent has.
func agentNames(execID string) []string {
	return append([]string{JournalName(execID), BeatName(execID), ResultsName(execID)}, checkpointNames(execID)...)
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
	names := append(agentNames(execID), statusTemp(execID))
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

// Usage is what a directory holds.
type Usage struct {
	// Bytes is the disk space of the files.
	Bytes uint64
	// Files is the number of names of any kind.
	Files uint64
}

// ErrTooDeep means that a directory has more levels than Usage counts.
var ErrTooDeep = fmt.Errorf("the directory has more than %d levels: %w", maxDepth, ErrTampered)

// maxDepth bounds the levels that Usage counts. A log directory has one.
const maxDepth = 16

// errCounted ends a count that has reached its maximum.
var errCounted = errors.New("the count has reached its maximum")

// Usage counts what the directory holds, with everything below it. It ends early once it
// has counted more than most names. Files without a name are not counted. It fails with
// ErrTooDeep, or with errdefs.ErrPermissionDenied if a directory cannot be read.
func (d *Dir) Usage(ctx context.Context, most uint64) (Usage, error) {
	var sum Usage
	err := d.at(func(fd int) error { return count(ctx, fd, ".", 1, most, &sum) })
	if errors.Is(err, errCounted) {
		return sum, nil
	}
	if err != nil {
		return sum, d.describe(".", err)
	}
	return sum, nil
}

// count adds what a directory holds to sum.
func count(ctx context.Context, parent int, name string, depth int, most uint64, sum *Usage) error {
	if depth > maxDepth {
		return ErrTooDeep
	}
	dir, err := filesystem.Open(parent, name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	fd := int(dir.Fd())
	return filesystem.Names(ctx, dir, func(entry string) error {
		var st unix.Stat_t
		if unix.Fstatat(fd, entry, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return nil // removed meanwhile
		}
		sum.Files++
		sum.Bytes += taken(&st)
		if sum.Files > most {
			return errCounted
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		switch err := count(ctx, fd, entry, depth+1, most, sum); {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			return nil // replaced meanwhile; the next count sees by what
		default:
			return err
		}
	})
}

// smallFile is the space that a file of any size may have allocated.
const smallFile = 64 << 10

// taken returns the disk space that a file counts for. xfs allocates up to as much again
// for a file that grows, and takes it back later; that does not count.
func taken(st *unix.Stat_t) uint64 {
	size, allocated := uint64(max(st.Size, 0)), uint64(max(st.Blocks, 0))*512
	if allocated > size && allocated <= 2*size+smallFile {
		return size
	}
	return allocated
}

// ExecOf returns the id of the exec that a log file belongs to by its name.
func ExecOf(name string) (execID string, ok bool) {
	for _, suffix := range slices.Concat(Suffixes(), checkpointSuffixes, []string{suffixResults}) {
		if id, ok := strings.CutSuffix(name, suffix); ok && ids.Valid(id) {
			return id, true
		}
	}
	return "", false
}

// RemoveOthers removes everything in the directory except regular files with one link
// whose names keep accepts, and sockets of such a name. The container must not run, or
// ctx must bound the call.
func (d *Dir) RemoveOthers(ctx context.Context, keep func(name string) bool) error {
	return d.at(func(fd int) error {
		top, err := filesystem.Open(fd, ".")
		if err != nil {
			return d.describe(".", err)
		}
		defer func() { _ = top.Close() }()
		for removed := 1; removed > 0; { // a directory that changes while it is read may hide names
			removed = 0
			if err := filesystem.Names(ctx, top, func(name string) error {
				var st unix.Stat_t
				err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
				if errors.Is(err, unix.ENOENT) || err == nil && wanted(&st) && keep(name) {
					return nil
				}
				removed++
				return d.removeEntry(ctx, name)
			}); err != nil {
				return d.describe(".", err)
			}
		}
		return nil
	})
}

// wanted reports whether agbox makes files of this kind.
func wanted(st *unix.Stat_t) bool {
	kind := st.Mode & unix.S_IFMT
	return st.Nlink == 1 && (kind == unix.S_IFREG || kind == unix.S_IFSOCK)
}

// Shrink removes the largest files of the directory until the others take at most most
// bytes. It returns how many it has removed. Call it after RemoveOthers, which bounds the
// number of names.
func (d *Dir) Shrink(ctx context.Context, most uint64) (removed int, err error) {
	type file struct {
		name  string
		bytes uint64
	}
	var all []file
	var sum uint64
	err = d.at(func(fd int) error {
		top, err := filesystem.Open(fd, ".")
		if err != nil {
			return err
		}
		defer func() { _ = top.Close() }()
		return filesystem.Names(ctx, top, func(name string) error {
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				all = append(all, file{name, taken(&st)})
				sum += taken(&st)
			}
			return nil
		})
	})
	if err != nil {
		return 0, d.describe(".", err)
	}
	slices.SortFunc(all, func(a, b file) int { return cmp.Compare(b.bytes, a.bytes) })
	for _, f := range all {
		if sum <= most {
			break
		}
		if err := d.removeEntry(ctx, f.name); err != nil {
			return removed, d.describe(f.name, err)
		}
		sum -= f.bytes
		removed++
	}
	return removed, nil
}
