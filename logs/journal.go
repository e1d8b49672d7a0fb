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
	if err := checkID(execID); err != nil {
		return nil, err
	}
	f, err := d.makeFile(JournalName(execID), owner)
	if err != nil {
		return nil, err
	}
	return &Journal{dir: d, file: diskFile{f}, quota: quota, max: max}, nil
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
	if err := checkID(execID); err != nil {
		return nil, err
	}
	return d.openFile(JournalName(execID), os.O_RDONLY)
}
