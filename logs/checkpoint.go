package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// CheckpointSlots is the number of files that an exec has for its newest checkpoints. A new
// one replaces the oldest, so the newest CheckpointSlots-1 are whole at any time.
const CheckpointSlots = 6

// checkpointSuffixes has the suffixes of the names of checkpoints, by slot.
var checkpointSuffixes = func() (all []string) {
	for slot := range CheckpointSlots {
		all = append(all, ".ckpt-"+strconv.Itoa(slot)+".json")
	}
	return all
}()

// checkpointTempSuffix is that of a checkpoint that is being written. A leading dot belongs
// to its name too.
const checkpointTempSuffix = ".ckpt"

// CheckpointName is the file name of an exec's checkpoint with that number. The id must be
// valid.
func CheckpointName(execID string, seq uint64) string {
	return execID + checkpointSuffixes[seq%CheckpointSlots]
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
	if err := checkID(execID); err != nil {
		return nil, err
	}
	return d.openFile(CheckpointName(execID, seq), os.O_RDONLY)
}

// RemoveCheckpoints removes the checkpoints of an exec that has ended.
func (d *Dir) RemoveCheckpoints(execID string) error {
	if err := checkID(execID); err != nil {
		return err
	}
	errs := []error{d.unlink(checkpointTemp(execID))}
	for _, suffix := range checkpointSuffixes {
		errs = append(errs, d.unlink(execID+suffix))
	}
	return errors.Join(errs...)
}
