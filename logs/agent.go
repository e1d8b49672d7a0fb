package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// BeatSize is the size of the record of the newest beat of an incarnation, in bytes.
const BeatSize = 256

// Beat is the file with the newest beat of an incarnation, open for writing. Its methods
// must not run at the same time.
type Beat struct{ file diskFile }

// CreateBeat makes the file. It fails with errdefs.ErrAlreadyExists if there is one.
func (d *Dir) CreateBeat(execID string, owner Owner) (*Beat, error) {
	f, err := d.makeFor(execID, BeatName(execID), owner)
	if err != nil {
		return nil, err
	}
	return &Beat{f}, nil
}

// Write replaces the record. It has at most BeatSize bytes and is filled up with spaces. The
// record outlives the process, but is not synced: the next beat replaces it.
func (b *Beat) Write(record []byte) error {
	if len(record) > BeatSize {
		return unix.EFBIG
	}
	page := make([]byte, BeatSize)
	for i := copy(page, record); i < BeatSize; i++ {
		page[i] = ' '
	}
	_, err := b.file.WriteAt(page, 0)
	return err
}

// Close releases the file.
func (b *Beat) Close() error { return b.file.Close() }

// ReadBeat returns the record of the newest beat, of at most BeatSize bytes. It fails with
// ErrNotExist if there is none, and with ErrTampered if its name belongs to something else.
func (d *Dir) ReadBeat(execID string) ([]byte, error) {
	f, err := d.openFor(execID, BeatName(execID), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, BeatSize))
}

// RemoveBeat removes the record of the newest beat of an exec that has ended. removed means
// that there was one.
func (d *Dir) RemoveBeat(execID string) (removed bool, err error) {
	if err := checkID(execID); err != nil {
		return false, err
	}
	err = d.at(func(fd int) error { return unix.Unlinkat(fd, BeatName(execID), 0) })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, d.describe(BeatName(execID), err)
	}
	return true, nil
}

// CheckpointName is the file name of an exec's checkpoint with that number. The id must be
// valid.
func CheckpointName(execID string, seq uint64) string {
	return execID + checkpointSuffixes[seq%CheckpointSlots]
}

// checkpointNames has the names of all files for checkpoints of an exec.
func checkpointNames(execID string) []string {
	names := []string{checkpointTemp(execID)}
	for _, suffix := range checkpointSuffixes {
		names = append(names, execID+suffix)
	}
	return names
}

func checkpointTemp(execID string) string { return "." + execID + checkpointTempSuffix }

// Checkpoint is a checkpoint of an exec that is being written. Its methods must not run at
// the same time.
type Checkpoint struct {
	dir    *Dir
	execID string
	file   diskFile
	quota  *Quota
	size   int
}

// CreateCheckpoint begins a checkpoint. Commit or Discard must follow. There may be only one
// at a time for each exec.
func (d *Dir) CreateCheckpoint(execID string, quota *Quota, owner Owner) (*Checkpoint, error) {
	if err := checkID(execID); err != nil {
		return nil, err
	}
	name := checkpointTemp(execID)
	if err := d.unlink(name); err != nil { // left by a supervisor that was killed
		return nil, err
	}
	f, err := d.makeFile(name, owner)
	if err != nil {
		return nil, err
	}
	return &Checkpoint{dir: d, execID: execID, file: diskFile{f}, quota: quota}, nil
}

// Write appends p. It fails with errdefs.ErrResourceExhausted if there is no room.
func (c *Checkpoint) Write(p []byte) (written int, err error) {
	granted := c.quota.takeForCheckpoint(time.Now(), len(p))
	defer func() { c.quota.commit(granted, written) }()
	if granted < len(p) {
		return 0, fmt.Errorf("the logs of the sandbox have reached their limit: %w", errdefs.ErrResourceExhausted)
	}
	if written, err = c.file.WriteAt(p, int64(c.size)); err != nil {
		err = c.dir.describe(checkpointTemp(c.execID), err)
	}
	c.size += written
	return written, err
}

// Sync writes what was written to disk.
func (c *Checkpoint) Sync() error {
	if err := c.file.Sync(); err != nil {
		return c.dir.describe(checkpointTemp(c.execID), err)
	}
	return nil
}

// Commit makes what was synced the checkpoint with that number. When it returns without an
// error, its name is on disk too.
func (c *Checkpoint) Commit(seq uint64) error {
	temp, name := checkpointTemp(c.execID), CheckpointName(c.execID, seq)
	var replaced int64
	err := c.dir.at(func(fd int) error {
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			replaced = max(0, st.Size)
		}
		return unix.Renameat(fd, temp, fd, name)
	})
	if err != nil {
		return errors.Join(c.dir.describe(name, err), c.Discard())
	}
	c.quota.release(uint64(replaced))
	return errors.Join(c.dir.f.Sync(), c.file.Close())
}

// Discard removes what was written.
func (c *Checkpoint) Discard() error {
	c.quota.release(uint64(c.size))
	return errors.Join(c.file.Close(), c.dir.unlink(checkpointTemp(c.execID)))
}

// OpenCheckpoint opens the file for the checkpoint of an exec with that number. It may be
// that of a later checkpoint meanwhile. It fails with ErrNotExist if there is none, and with
// ErrTampered if its name belongs to something else.
func (d *Dir) OpenCheckpoint(execID string, seq uint64) (io.ReadCloser, error) {
	return d.openFor(execID, CheckpointName(execID, seq), os.O_RDONLY)
}

// RemoveCheckpoints removes the checkpoints of an exec that has ended.
func (d *Dir) RemoveCheckpoints(execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	var errs []error
	for _, name := range checkpointNames(execID) {
		errs = append(errs, d.unlink(name))
	}
	return errors.Join(errs...)
}

// Journal is the journal of an exec, open for appending. Its methods must not run at the
// same time.
type Journal struct {
	dir   *Dir
	file  diskFile
	quota *Quota
	size  int64
	max   int64
	// named means that the name of the file is durable.
	named bool
}

// CreateJournal makes the journal of an exec, of at most max bytes. It fails with
// errdefs.ErrAlreadyExists if there is one.
func (d *Dir) CreateJournal(execID string, max int64, quota *Quota, owner Owner) (*Journal, error) {
	f, err := d.makeFor(execID, JournalName(execID), owner)
	if err != nil {
		return nil, err
	}
	return &Journal{dir: d, file: f, quota: quota, max: max}, nil
}

// Append writes p at the end, all or nothing. durable means that it returns when p is on
// disk. It fails with errdefs.ErrResourceExhausted if there is no room.
func (j *Journal) Append(p []byte, durable bool) error {
	n := len(p)
	if j.size+int64(n) > j.max {
		return fmt.Errorf("the journal %s has reached its limit of %d bytes: %w", j.file.Name(), j.max, errdefs.ErrResourceExhausted)
	}
	granted, written := j.quota.takeForJournal(time.Now(), n), 0
	defer func() { j.quota.commit(granted, written) }()
	if granted < n {
		return fmt.Errorf("the logs of the sandbox have reached their limit: %w", errdefs.ErrResourceExhausted)
	}
	_, err := j.file.WriteAt(p, j.size)
	if err == nil && durable {
		err = j.sync()
	}
	if err != nil {
		// The bytes were not acknowledged and must not look as if they were.
		return errors.Join(j.dir.describe(j.file.Name(), err), j.file.Truncate(j.size))
	}
	written = n
	j.size += int64(n)
	return nil
}

// sync makes the content and, the first time, the name of the file durable.
func (j *Journal) sync() error {
	if err := unix.Fdatasync(int(j.file.Fd())); err != nil {
		return err
	}
	if !j.named {
		if err := j.dir.f.Sync(); err != nil {
			return err
		}
		j.named = true
	}
	return nil
}

// Close releases the file.
func (j *Journal) Close() error { return j.file.Close() }

// OpenJournal opens the journal of an exec for reading. It fails with ErrNotExist if there
// is none, and with ErrTampered if its name belongs to something else.
func (d *Dir) OpenJournal(execID string) (io.ReadSeekCloser, error) {
	return d.openFor(execID, JournalName(execID), os.O_RDONLY)
}

// ResultsName is the file name of what calls of an exec gave. The id must be valid.
func ResultsName(execID string) string { return execID + suffixResults }

// Results is the file with what calls of an exec gave that is too long for its journal, one after
// the other. Where each is, and its checksum, is in the journal. Its methods may run at the same
// time, for different places.
type Results struct {
	dir   *Dir
	file  diskFile
	quota *Quota
}

// CreateResults makes the file. It fails with errdefs.ErrAlreadyExists if there is one.
func (d *Dir) CreateResults(execID string, quota *Quota, owner Owner) (*Results, error) {
	f, err := d.makeFor(execID, ResultsName(execID), owner)
	if err != nil {
		return nil, err
	}
	return &Results{dir: d, file: f, quota: quota}, nil
}

// WriteAt writes p at an offset in bytes. It fails with errdefs.ErrResourceExhausted if there is
// no room: unlike a journal, results have none beyond that of output.
func (r *Results) WriteAt(p []byte, at int64) (written int, err error) {
	granted := r.quota.take(time.Now(), len(p))
	defer func() { r.quota.commit(granted, written) }()
	if granted < len(p) {
		return 0, fmt.Errorf("the logs of the sandbox have reached their limit: %w", errdefs.ErrResourceExhausted)
	}
	if written, err = r.file.WriteAt(p, at); err != nil {
		err = r.dir.describe(r.file.Name(), err)
	}
	return written, err
}

// Close releases the file.
func (r *Results) Close() error { return r.file.Close() }

// OpenResults opens what calls of an exec gave for reading. It fails with ErrNotExist if there is
// nothing, and with ErrTampered if its name belongs to something else.
func (d *Dir) OpenResults(execID string) (*os.File, error) {
	return d.openFor(execID, ResultsName(execID), os.O_RDONLY)
}
