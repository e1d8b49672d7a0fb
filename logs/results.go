package logs

import (
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
)

// suffixResults is what calls of an incarnation of an agent gave.
const suffixResults = ".results"

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
	if err := checkID(execID); err != nil {
		return nil, err
	}
	f, err := d.makeFile(ResultsName(execID), owner)
	if err != nil {
		return nil, err
	}
	return &Results{dir: d, file: diskFile{f}, quota: quota}, nil
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
	if err := checkID(execID); err != nil {
		return nil, err
	}
	return d.openFile(ResultsName(execID), os.O_RDONLY)
}
